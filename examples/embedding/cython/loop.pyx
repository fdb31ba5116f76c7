# cython: language_level=3, boundscheck=False, wraparound=False
"""Somebody else's event loop in Cython: no Python between two arrivals."""

from libc.stdint cimport int64_t

from fedbuff cimport EventQueue, LocalSGD, Server
from fedbuff._fedbuff_h cimport FB_OK, fb_event, fb_model, fb_model_data, fb_model_release, fb_status

import numpy as np


def run(Server server, LocalSGD local, EventQueue queue, const double[:, ::1] delays, int n_arrivals):
    """Plays n_arrivals; task k of client i takes delays[i, k]. Columns of an arrival log come back."""
    cdef int64_t[::1] version = np.zeros(local.n_clients, np.int64), task = np.zeros(local.n_clients, np.int64)
    cdef double[::1] started = np.zeros(local.n_clients)
    cdef double[:, ::1] delta = np.empty((local.n_clients, local.dim))
    cdef int64_t[::1] log_client = np.empty(n_arrivals, np.int64), log_version = np.empty(n_arrivals, np.int64)
    cdef double[::1] log_start = np.empty(n_arrivals), log_arrive = np.empty(n_arrivals)
    cdef fb_event event
    cdef fb_model* model
    cdef fb_status status = FB_OK
    cdef int64_t k, client
    with nogil:
        for k in range(-local.n_clients, n_arrivals):  # first every client starts, then they arrive
            if k < 0:
                client, event.time = k + local.n_clients, 0.0
            else:
                status = queue.pop_raw(&event)
                client = event.item
                log_client[k], log_version[k] = client, version[client]
                log_start[k], log_arrive[k] = started[client], event.time
                status = status or server.upload_raw(&delta[client, 0], version[client], 1.0, NULL)
            status = status or server.download_raw(&version[client], &model)
            if status != FB_OK:
                break
            status = local.delta_raw(client, task[client], fb_model_data(model), &delta[client, 0])
            fb_model_release(model)
            started[client] = event.time
            status = status or queue.push_raw(event.time + delays[client, task[client]], client, 0)
            task[client] += 1
    if status != FB_OK:
        raise RuntimeError(f"fb_status {status}")
    return tuple(map(np.asarray, (log_client, log_version, log_start, log_arrive)))
