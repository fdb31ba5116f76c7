"""Server and DeltaBuffer: what is called once per arrival, so through Cython and not through pybind11.

They behave, to the text of their exceptions, as the ones in fedbuff/backends/python/server.py.
"""

cimport cython
cimport numpy as cnp
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from libc.math cimport isfinite
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.string cimport memcpy, memset

from fedbuff._fedbuff_h cimport *

import numpy as np

from fedbuff._base.arrays import as_model, as_units, as_vector, model_dtype
from fedbuff._rule.server_file import ServerState, read_server, write_server
from fedbuff._base.checks import integer
from fedbuff._rule.server_errors import (
    change_of,
    checked_dim,
    client_of,
    closed_error,
    diverged_error,
    float_of,
    forked_error,
    norm_error,
    not_finite,
    overflow_error,
    own_error,
    positive,
    ticket_error,
    unit_of,
    version_error,
    wide_error,
)
from fedbuff._rule.strategies import plain_rule_of, rule_of
from fedbuff._rule.table import check_memory, make_rows


cnp.import_array()


cdef enum:
    MOST_TABLE = 1 << 16  # entries of a table of staleness weights
    EQUAL = 0
    SAMPLES = 1
    ASK = 2


# By the name of the header's arrays: the two of `_rule/state.py` in which rows of that name are together.
ROW_ARRAYS = {"row": ("table_client", "table_rows"), "step_row": ("step_client", "step_rows"),
              "held": (None, "held_deltas")}
HELD_COLUMNS = {"held_client": np.int64, "held_staleness": np.int64, "held_s": np.float64, "held_e": np.float64}
DTYPES = {FB_F32: np.float32, FB_F64: np.float64, FB_I64: np.int64, FB_BF16: np.uint16}


cdef class Model:
    """Holds a model for as long as an array shows it."""

    def __dealloc__(self):
        fb_model_release(self.model)


cdef inline object vector(str name, object value, fb_dtype dtype, Py_ssize_t dim, object numpy_dtype):
    """The value as a contiguous vector of the dtype: itself where it is one, else looked at with care."""
    cdef cnp.ndarray array
    if cnp.PyArray_Check(value):
        array = <cnp.ndarray> value
        if (cnp.PyArray_TYPE(array) == (cnp.NPY_FLOAT32 if dtype == FB_F32 else cnp.NPY_FLOAT64)
                and cnp.PyArray_NDIM(array) == 1 and cnp.PyArray_DIM(array, 0) == dim
                and cnp.PyArray_IS_C_CONTIGUOUS(array) and cnp.PyArray_ISALIGNED(array)
                and cnp.PyArray_ISNOTSWAPPED(array)):
            return value
    return as_vector(name, value, dim, numpy_dtype)


cdef inline object delta_array(object value, fb_dtype dtype, Py_ssize_t dim, object numpy_dtype, object unit):
    return vector("delta", value, dtype, dim, numpy_dtype) if unit is None else as_units("delta", value, dim)


cdef inline fb_dtype dtype_of(object array) noexcept:
    cdef int kind = cnp.PyArray_TYPE(<cnp.ndarray> array)
    if kind == <int> cnp.NPY_FLOAT32:
        return FB_F32
    if kind == <int> cnp.NPY_FLOAT64:
        return FB_F64
    return FB_I32 if cnp.PyArray_ITEMSIZE(<cnp.ndarray> array) == 4 else FB_I64


cdef void* address(object array) noexcept:
    return cnp.PyArray_DATA(<cnp.ndarray> array)


cdef double as_double(str name, object value) except? -1.0:
    return PyFloat_AS_DOUBLE(value) if PyFloat_CheckExact(value) else float_of(name, value)


cdef int64_t as_int64(str name, object value) except? -1:
    cdef object given = value if PyLong_CheckExact(value) else integer(name, value)
    cdef int overflow = 0
    cdef int64_t number = PyLong_AsLongLongAndOverflow(given, &overflow)
    if overflow != 0:
        raise wide_error(name, given)
    return number


cdef inline int64_t as_version(object version, fb_server* server) except? -1:
    cdef object given = version if PyLong_CheckExact(version) else integer("version", version)
    cdef int overflow = 0
    cdef int64_t number = PyLong_AsLongLongAndOverflow(given, &overflow)
    if overflow != 0:
        raise version_error(given, fb_server_version(server))
    return number


cdef inline int64_t as_ticket(object ticket) except? -1:
    if ticket is None:
        return FB_NO_TICKET
    cdef object given = integer("ticket", ticket)
    cdef int overflow = 0
    cdef int64_t number = PyLong_AsLongLongAndOverflow(given, &overflow)
    if overflow != 0 or number < 0:
        raise ticket_error(given)
    return number


cdef extern from *:
    """
    static void fb_set_own(fb_rule* rule, size_t step, size_t context, int64_t n_state) {
      rule->own_step = (fb_step_function)step;
      rule->own_context = (void*)context;
      rule->own_state = n_state;
    }
    """
    void fb_set_own(fb_rule* rule, size_t step, size_t context, int64_t n_state)


cdef fb_rule c_rule(object rule, object unit):
    cdef fb_rule made = {"size": sizeof(fb_rule), "abi": FB_ABI_VERSION, "unit": unit or 0.0, **rule.c_fields()}
    if rule.own is None:
        fb_set_own(&made, 0, 0, 0)
    else:
        fb_set_own(&made, rule.own.address, rule.own.context_address, rule.own.n_state)
    return made


cdef int check(fb_status status) except -1:
    if status == FB_ERR_MEMORY:
        raise MemoryError()
    if status != FB_OK:
        raise ValueError(fb_status_text(status).decode())
    return 0


cdef int refuse(
    fb_status status, object what, object delta, object version, int64_t current, object ticket, object dtype=None
) except -1:
    """Raises what the status stands for."""
    if status == FB_ERR_NEVER_GIVEN or status == FB_ERR_NOTHING_DUE:
        raise version_error(version, current)
    if status == FB_ERR_ZERO_NORM:
        raise norm_error()
    if status == FB_ERR_NOT_FINITE:
        raise not_finite(delta)
    if status == FB_ERR_OVERFLOW:
        raise overflow_error(dtype) if delta.dtype.kind == "f" else overflow_error()
    if status == FB_ERR_DIVERGED:
        raise diverged_error(current, dtype)
    if status == FB_ERR_TICKET:
        raise ticket_error(ticket)
    if status == FB_ERR_CLOSED:
        raise closed_error(what)
    if status == FB_ERR_FORKED:
        raise forked_error(what)
    return check(status)


cdef int64_t counted(object what, const void* handle, int64_t number) except? -1:
    """What a handle says of itself; -1 of null."""
    if number < 0 and handle != NULL:
        raise forked_error(what)
    return number


cdef class Server:
    """FedBuff's server, fed by hand.

    >>> import numpy as np, fedbuff as fb
    >>> server = fb.Server(np.zeros(2), fb.FedBuff(buffer_size=1))
    >>> version, w = server.download()
    >>> server.upload(np.array([1.0, -1.0]), version)
    True
    >>> server.version, server.w
    (1, array([-1.,  1.]))

    Calls from several threads are made one after another; those that wait help to add large deltas. `take_ticket` fixes
    the place of an upload beforehand. An upload that raises changes nothing.

    unit  deltas are then int32 or int64 arrays that count units of this size. They are summed exactly, so that a full
          buffer gives the same bits in whatever order it came: weights count to a multiple of 2**-24, contributions to
          the nearest unit
    """

    def __cinit__(self, *args, **kwargs):
        self.server = NULL
        self.n_table = 0

    def __init__(self, w0, strategy, *, unit=None):
        array = as_model("w0", w0)
        rule = plain_rule_of(strategy)
        self._prepare(rule, array, unit_of(unit, rule))
        self._check_rows()
        cdef fb_rule c = c_rule(rule, self.unit)
        check(fb_server_create(&c, self.dtype_code, self.dim, address(array), &self.server))
        if self.rows is not None:
            check(fb_server_set_table(self.server, address(self.rows), self.rows.nbytes))

    def __dealloc__(self):
        fb_server_destroy(&self.server)

    def _prepare(self, rule, w, unit):
        if self.server != NULL:
            raise TypeError("server: it is made once; make another one")
        self.rule = rule
        self.unit = unit
        self.dtype = w.dtype
        self.dim = w.size
        self.dtype_code = FB_F32 if w.dtype == np.float32 else FB_F64
        self.weighting = {"equal": EQUAL, "samples": SAMPLES}.get(rule.weighting, ASK)
        self.weight_scale = rule.weight_scale
        self.n_clients = rule.clients
        self.client_weights = None if rule.client_weights is None else np.array(rule.client_weights)
        self.has_control = rule.has_control

    def _check_rows(self):
        """Refuses a table that does not fit the memory; makes that of a file, where the table has a path."""
        if self.rule.kept_rows is None:
            return
        table, n_rows = self.rule.kept_rows
        check_memory(table, n_rows, self.dim, self.dtype)
        self.rows = make_rows(table, n_rows, self.dim, self.dtype)

    cdef fb_status upload_from_raw(
        self, const void* delta, int64_t version, double e, int64_t client, int32_t* outcome_out
    ) noexcept nogil:
        return fb_server_upload_from(
            self.server, self.dtype_code, self.dim, delta, version, e, client, FB_NO_TICKET, outcome_out)

    cdef fb_status upload_raw(self, const void* delta, int64_t version, double e, int32_t* outcome_out) noexcept nogil:
        return fb_server_upload(self.server, self.dtype_code, self.dim, delta, version, e, FB_NO_TICKET, outcome_out)

    cdef fb_status download_raw(self, int64_t* version_out, fb_model** model_out) noexcept nogil:
        return fb_server_download(self.server, version_out, model_out)

    cdef fb_status cancel_raw(self, int64_t version) noexcept nogil:
        return fb_server_cancel(self.server, version)

    cdef int require(self, fb_status status) except -1:
        return refuse(status, "server", None, None, 0, None)

    cdef int grow_table(self, int64_t staleness) except -1:
        """Works s out up to this staleness, and further where the function allows: the next call is then far off.

        A staleness beyond any usual table is worked out alone. One thread at a time, so that a table only grows.
        """
        with cython.critical_section(self):
            if staleness >= self.n_table:
                self.make_table(staleness)
        return 0

    cdef int make_table(self, int64_t staleness) except -1:
        cdef fb_status status
        cdef double weight
        cdef const double* values
        cdef int64_t n
        if staleness >= MOST_TABLE:
            weight = self.rule.staleness_weight(staleness)
            with nogil:  # another thread may be in an own rule, which needs the GIL
                status = fb_server_set_staleness_at(self.server, staleness, weight)
            check(status)
            return 0
        table = []
        for t in range(min(max(2 * staleness, 16), MOST_TABLE)):
            try:
                table.append(self.rule.staleness_weight(t))
            except Exception:
                if t <= staleness:
                    raise
                break
        weights = np.array(table)
        values, n = <const double*> address(weights), len(table)
        with nogil:
            status = fb_server_set_staleness(self.server, values, n)
        self.require(status)
        self.n_table = len(table)
        return 0

    cdef double weight_of(self, double n_samples, int64_t client) except? -1.0:
        cdef double e = self.sample_weight(n_samples)
        return e if self.client_weights is None else e * self.client_weights[client]

    cdef double sample_weight(self, double n_samples) except? -1.0:
        if self.weighting == EQUAL:
            return self.weight_scale
        if self.weighting == SAMPLES:
            return n_samples * self.weight_scale
        return self.rule.sample_weight(n_samples)

    @property
    def version(self):
        """How many steps were made."""
        return counted("server", self.server, fb_server_version(self.server))

    @property
    def fill(self):
        """How many arrivals are in the buffer."""
        return counted("server", self.server, fb_server_fill(self.server))

    @property
    def dropped(self):
        """How many arrivals were refused because they were staler than max_staleness."""
        return counted("server", self.server, fb_server_dropped(self.server))

    @property
    def outstanding(self):
        """How many downloads were neither returned nor cancelled."""
        cdef int64_t n
        with nogil:
            n = fb_server_outstanding(self.server)
        return counted("server", self.server, n)

    @property
    def live_versions(self):
        """How many models are kept, the current one included: 1 unless the rule's base is "current"."""
        cdef int64_t n
        with nogil:
            n = fb_server_live_models(self.server)
        return counted("server", self.server, n)

    @property
    def w(self):
        """The current model, read-only; like a download it stays as it is while the server moves on."""
        return self.as_array(fb_server_model(self.server))

    cdef object as_array(self, fb_model* model):
        cdef Model holder = Model.__new__(Model)
        cdef cnp.npy_intp shape = self.dim
        if model == NULL:
            refuse(FB_ERR_ARGUMENT if self.server == NULL else FB_ERR_FORKED, "server", None, None, 0, None)
        holder.model = model
        cdef object array = cnp.PyArray_SimpleNewFromData(
            1, &shape, cnp.NPY_FLOAT32 if self.dtype_code == FB_F32 else cnp.NPY_FLOAT64, <void*> fb_model_data(model))
        cnp.set_array_base(array, holder)
        cnp.PyArray_CLEARFLAGS(array, cnp.NPY_ARRAY_WRITEABLE)
        return array

    cdef object control_of(self, object w):
        """The control variate, which lies behind its model."""
        cdef cnp.npy_intp shape = self.dim
        cdef Py_ssize_t bytes = self.dim * (4 if self.dtype_code == FB_F32 else 8)
        cdef char* values = <char*> address(w)
        cdef object array = cnp.PyArray_SimpleNewFromData(
            1, &shape, cnp.NPY_FLOAT32 if self.dtype_code == FB_F32 else cnp.NPY_FLOAT64, values + bytes)
        cnp.set_array_base(array, w)
        cnp.PyArray_CLEARFLAGS(array, cnp.NPY_ARRAY_WRITEABLE)
        return array

    @property
    def _handle(self):
        return <size_t> self.server

    def download(self):
        """The version and its model, read-only, valid and unchanged for as long as it is held.

        With a rule that has a control variate it comes third: (version, w, control).
        """
        cdef int64_t version
        cdef fb_model* model
        cdef fb_status status
        with nogil:
            status = self.download_raw(&version, &model)
        if status != FB_OK:
            refuse(status, "server", None, None, 0, None)
        w = self.as_array(model)
        if not self.has_control:
            return version, w
        return version, w, self.control_of(w)

    def take_ticket(self):
        """A place in the order in which deltas are added: pass it to one `upload`, or to `cancel_ticket`."""
        cdef int64_t ticket
        cdef fb_status status = fb_server_take_ticket(self.server, &ticket)
        if status != FB_OK:
            refuse(status, "server", None, None, 0, None)
        return ticket

    def cancel_ticket(self, ticket):
        """Gives up a ticket: nothing will be uploaded with it, and those after it wait no longer."""
        cdef fb_status status = fb_server_cancel_ticket(self.server, as_ticket(integer("ticket", ticket)))
        if status != FB_OK:
            refuse(status, "server", None, None, 0, ticket)

    def upload(self, delta, version, n_samples=1.0, *, client=None, change=None, ticket=None):
        """Takes in the delta of a client that downloaded `version`; whether the server stepped.

        Rules that look at clients need to know the client, 0 to n_clients - 1. Rules with a control variate need
        `change`, what the client's state has changed by.

        A delta that is too stale is counted in `dropped` and not read. With a ticket the delta is added in its place,
        and the call waits for those before it. A ticket is used up unless the arguments do not fit the server.
        """
        cdef int64_t v = as_version(version, self.server)
        cdef int64_t place = as_ticket(ticket)
        cdef double samples = as_double("n_samples", n_samples)
        if not (isfinite(samples) and samples > 0):
            positive("n_samples", samples)
        cdef int64_t who = -1
        if client is not None or self.n_clients != 0:
            who = client_of(client, self.n_clients)
        cdef double e = self.weight_of(samples, who)
        cdef object array = delta_array(delta, self.dtype_code, self.dim, self.dtype, self.unit)
        cdef const void* values = address(array)
        cdef const void* changes = NULL
        cdef fb_dtype kind = dtype_of(array)
        cdef fb_status status = FB_ERR_SHORT_TABLE
        if change is not None or self.has_control:
            of_state = change_of(change, self.rule, self.dim, self.dtype)
            changes = address(of_state)
        cdef int32_t outcome = 0
        if self.n_table == 0:
            self.grow_table(0)
        while status == FB_ERR_SHORT_TABLE:
            with nogil:
                if changes == NULL:
                    status = fb_server_upload_from(self.server, kind, self.dim, values, v, e, who, place, &outcome)
                else:
                    status = fb_server_upload_change(
                        self.server, kind, self.dim, values, changes, v, e, place, &outcome)
            if status == FB_ERR_SHORT_TABLE:
                try:
                    self.grow_table(fb_server_version(self.server) - v)
                except BaseException:
                    fb_server_cancel_ticket(self.server, place)  # nothing where there is none
                    raise
        if status != FB_OK:
            self.explain_own(status)
            refuse(status, "server", array, v, fb_server_version(self.server), ticket, self.dtype)
        return outcome == FB_STEPPED

    def step(self):
        """Steps with what is in the buffer, as a server does whose steps have times (period, max_wait); False, and
        nothing else, where it is empty."""
        if self.rule.trigger == "ringleader":
            raise ValueError('step: trigger="ringleader" steps at arrivals only')
        cdef fb_status status
        with nogil:
            status = fb_server_step(self.server)
        if status == FB_ERR_EMPTY:
            return False
        if status != FB_OK:
            self.explain_own(status)
            refuse(status, "server", None, None, fb_server_version(self.server), None, self.dtype)
        return True

    cdef int explain_own(self, fb_status status) except -1:
        """Raises what the function of an own rule raised, or that it failed."""
        if status == FB_ERR_HOST and self.rule.own is not None:
            self.rule.own.raise_error()
            raise own_error(fb_server_version(self.server), "failed")
        return 0

    @property
    def overdue(self):
        """The versions whose tasks the rule stops (stop_stale, restart), and how many tasks are due on each.

        A server that is fed by hand cannot stop them: stop them, `cancel` each, and send their clients the present
        model. Their uploads are counted in `dropped`.
        """
        cdef int64_t n, room = 0
        cdef int64_t* version_out = NULL
        cdef int64_t* tasks_out = NULL
        versions = tasks = np.zeros(0, np.int64)
        while True:
            with nogil:
                n = fb_server_overdue(self.server, room, version_out, tasks_out)
            counted("server", self.server, n)
            if n <= room:
                break
            room = n  # others may download meanwhile
            versions, tasks = np.zeros(room, np.int64), np.zeros(room, np.int64)
            version_out, tasks_out = <int64_t*> address(versions), <int64_t*> address(tasks)
        return dict(zip(versions[:n].tolist(), tasks[:n].tolist(), strict=True))

    def _upload_models(self, replies):
        """Uploads of models that came back in parts, without a copy: (start, parts, version, n_samples) of each, the
        start and the parts vectors of the server's dtype. For each: whether the server stepped, None where it was too
        stale, or the exception that `upload` of start - model raises."""
        cdef Py_ssize_t n = len(replies), n_parts = sum([len(parts) for _, parts, _, _ in replies]), k, i, at = 0
        cdef int64_t end, oldest = INT64_MAX
        cdef fb_status status
        room = np.zeros(max(1, n * sizeof(fb_model_upload)), np.uint8)
        addresses = np.zeros(max(1, n_parts), np.uintp)
        ends = np.zeros(max(1, n_parts), np.int64)
        cdef fb_model_upload* upload = <fb_model_upload*> address(room)
        cdef const void** part = <const void**> address(addresses)
        cdef int64_t* part_end = <int64_t*> address(ends)
        held = []
        for k in range(n):
            start, parts, version, n_samples = replies[k]
            start = vector("start", start, self.dtype_code, self.dim, self.dtype)
            held.append(start)
            upload[k].start, upload[k].part, upload[k].part_end = address(start), part + at, part_end + at
            upload[k].n_parts, upload[k].client = len(parts), -1
            upload[k].version = as_version(version, self.server)
            upload[k].e = self.sample_weight(positive("n_samples", n_samples))
            oldest = min(oldest, upload[k].version)
            end = 0
            for i in range(len(parts)):
                values = vector("parts", parts[i], self.dtype_code, len(parts[i]), self.dtype)
                held.append(values)
                end += len(values)
                part[at], part_end[at] = address(values), end
                at += 1
        if self.n_table == 0:
            self.grow_table(0)
        if 0 <= oldest <= fb_server_version(self.server) - self.n_table:
            try:
                self.grow_table(fb_server_version(self.server) - oldest)
            except Exception:
                pass  # it is that upload's refusal
        with nogil:
            status = fb_server_upload_models(self.server, self.dtype_code, self.dim, n, upload)
        if status == FB_ERR_ARGUMENT:
            raise ValueError(f"parts: expected {self.dim} values in all of each model")
        check(status)
        return [self.outcome_of(&upload[k], replies[k]) for k in range(n)]

    cdef object outcome_of(self, fb_model_upload* upload, object reply):
        """What `_upload_models` gives for one."""
        if upload.status == FB_OK:
            return None if upload.outcome == FB_TOO_STALE else upload.outcome == FB_STEPPED
        start, parts, version, n_samples = reply
        try:
            delta = np.subtract(start, np.concatenate(parts))
            if upload.status == FB_ERR_SHORT_TABLE:
                return self.upload(delta, version, n_samples)
            refuse(upload.status, "server", delta, version, fb_server_version(self.server), None, self.dtype)
        except Exception as error:
            return error

    def cancel(self, version):
        """Gives up one download of `version`: its client died."""
        cdef int64_t v = as_version(version, self.server)
        cdef fb_status status
        with nogil:
            status = self.cancel_raw(v)
        if status != FB_OK:
            refuse(status, "server", None, v, fb_server_version(self.server), None)

    def close(self):
        """Ends uploads and downloads: those that wait for their turn raise, and so do later ones. `w` stays."""
        self.require(fb_server_close(self.server))

    def save(self, path):
        """Writes all of the state, beside `path` first and then in its place."""
        write_server(path, self._get_state())

    @classmethod
    def load(cls, path, strategy=None):
        """A server as it was saved. `strategy` is needed, and must be the same, where its staleness function is one of
        the user's own, which a file cannot hold; otherwise it may be given to be compared."""
        state = read_server(path, None if strategy is None else rule_of(strategy))
        cdef Server server = cls.__new__(cls)
        server._prepare(state.rule, state.w, state.unit)
        server._check_rows()
        server._set_state(state)
        return server

    def _get_state(self):
        # Of a clone: other threads may go on uploading while this one reads.
        cdef fb_server* still = NULL
        cdef fb_status status
        with nogil:
            status = fb_server_clone(self.server, &still)
        self.require(status)
        try:
            return self.read_state(still)
        finally:
            fb_server_destroy(&still)

    cdef object read_state(self, fb_server* server):
        cdef fb_server_state state
        memset(&state, 0, sizeof(fb_server_state))
        state.size = sizeof(fb_server_state)
        state.abi = FB_ABI_VERSION
        check(fb_server_get_state(server, &state))
        versions = np.zeros(state.n_due + 1, np.int64)
        counts = np.zeros(state.n_due + 1, np.int64)
        kept = np.zeros(state.n_due + 1, np.uintp)
        state.due_version = <int64_t*> address(versions)
        state.due = <int64_t*> address(counts)
        state.kept = <const void**> address(kept)
        check(fb_server_get_state(server, &state))
        arrays = np.zeros(max(1, state.n_arrays * sizeof(fb_array)), np.uint8)
        state.arrays = <fb_array*> address(arrays)
        check(fb_server_get_state(server, &state))
        n = state.n_due
        models = {}
        for v, p in zip(versions[:n].tolist(), kept[:n].tolist(), strict=True):
            if p:
                models[v] = self.copy_of(<const void*> <size_t> p, self.dtype)
        sums = self.dtype if self.unit is None else np.dtype(np.int64)
        return ServerState(
            rule=self.rule,
            unit=self.unit,
            w=self.copy_of(state.w, self.dtype),
            total=self.copy_of(state.sum, sums) if self.has_sum(state.fill) else np.zeros(self.dim, sums),
            version=state.version,
            fill=state.fill,
            dropped=state.dropped,
            weight_sum=state.sum_weights,
            scaled_weight_sum=state.sum_scaled_weights,
            outstanding=dict(zip(versions[:n].tolist(), counts[:n].tolist(), strict=True)),
            kept=models,
            buffer_staleness=state.staleness,
            kept_by_rule=self.kept_by_rule(&state),
        )

    cdef bint has_sum(self, int64_t fill):
        """Whether the buffer's sum is more than zeros: it has arrivals, which are not kept in another way."""
        table = self.rule.table
        return fill > 0 and not self.rule.holds_deltas and (table is None or table.keeps != "means")

    cdef object kept_by_rule(self, fb_server_state* state):
        kept, rows = {}, {"row": [], "step_row": [], "held": []}
        if state.first != NULL:
            kept["first"] = self.copy_of(state.first, self.dtype)
        if state.second != NULL:
            kept["second"] = self.copy_of(state.second, self.dtype)
        cdef fb_array* array
        for i in range(state.n_arrays):
            array = &state.arrays[i]
            name = array.name.decode()
            values = self.copy_of(array.data, DTYPES[array.dtype], array.size)
            if name in rows:
                rows[name].append((array.key, values))
            else:
                kept[name] = values
        kind = self.dtype if self.rule.kept_rows is None else self.rule.kept_rows[0].dtype(self.dtype)
        if self.rule.holds_deltas and "held_client" not in kept:
            kept |= {name: np.empty(0, dtype) for name, dtype in HELD_COLUMNS.items()}
        if self.rule.own is not None and self.rule.own.n_state == 0:
            kept["own_state"] = np.empty(0)
        for name, (keys, matrix) in ROW_ARRAYS.items():
            if name == "held" and "held_client" in kept:
                kept[matrix] = np.array([row for _, row in rows[name]], self.dtype).reshape(-1, self.dim)
            elif keys is not None and keys.replace("client", "total") in kept:
                kept[keys] = np.array([client for client, _ in rows[name]], np.int64)
                kept[matrix] = np.array([row for _, row in rows[name]], kind).reshape(-1, self.dim)
        return kept

    cdef object copy_of(self, const void* values, object dtype, int64_t size=-1):
        array = np.empty(self.dim if size < 0 else size, dtype)
        if array.nbytes > 0:
            memcpy(address(array), values, array.nbytes)
        return array

    def _set_state(self, saved):
        cdef fb_server_state state
        cdef fb_rule c = c_rule(self.rule, self.unit)
        memset(&state, 0, sizeof(fb_server_state))
        state.size = sizeof(fb_server_state)
        state.abi = FB_ABI_VERSION
        state.version, state.fill, state.dropped = saved.version, saved.fill, saved.dropped
        state.sum_weights, state.sum_scaled_weights = saved.weight_sum, saved.scaled_weight_sum
        state.staleness = saved.buffer_staleness
        arrays = [np.ascontiguousarray(a) for a in (saved.w, saved.total)]
        state.w, state.sum = address(arrays[0]), address(arrays[1])
        kept_by_rule = {name: np.ascontiguousarray(a) for name, a in saved.kept_by_rule.items()}
        parts = []
        for name, (keys, matrix) in ROW_ARRAYS.items():
            rows = kept_by_rule.pop(matrix, ())
            parts += [(name.encode(), key, row) for key, row in zip(
                kept_by_rule.pop(keys, ()) if keys is not None else range(len(rows)), rows, strict=True)]
        parts += [(name.encode(), -1, a) for name, a in kept_by_rule.items() if len(a) > 0]
        room = np.zeros(max(1, len(parts) * sizeof(fb_array)), np.uint8)
        state.arrays = <fb_array*> address(room)
        kinds = {"u": FB_BF16, "i": FB_I64}
        for name, key, array in parts:
            if name == b"first":
                state.first = address(array)
            elif name == b"second":
                state.second = address(array)
            else:
                kind = kinds.get(array.dtype.kind, FB_F32 if array.itemsize == 4 else FB_F64)
                state.arrays[state.n_arrays] = fb_array(<const char*> name, key, array.size, kind, address(array))
                state.n_arrays += 1
        due = sorted(saved.outstanding.items())
        versions = np.array([v for v, _ in due], np.int64)
        counts = np.array([n for _, n in due], np.int64)
        models = {v: np.ascontiguousarray(w) for v, w in saved.kept.items()}
        kept = np.array([models[v].ctypes.data if v in models else 0 for v, _ in due], np.uintp)
        state.n_due = len(due)
        state.due_version = <int64_t*> address(versions)
        state.due = <int64_t*> address(counts)
        state.kept = <const void**> address(kept)
        check(fb_server_restore(&c, self.dtype_code, self.dim, &state, &self.server))

    def __reduce__(self):
        raise TypeError("server: it does not pickle; use save and load")

    def __repr__(self):
        return (
            f"<{type(self).__name__}: version {self.version}, {self.fill} of {self.rule.buffer_size} in the buffer, "
            f"{self.dim} {self.dtype} weights>"
        )


cdef class DeltaBuffer:
    """A sum of deltas, for those who write their own server. Many threads may add at once.

    >>> import numpy as np, fedbuff as fb
    >>> buffer = fb.DeltaBuffer(2, np.float64)
    >>> buffer.add(np.array([1.0, 2.0]), weight=0.5)
    >>> buffer.step(np.zeros(2), lr=1.0)
    array([-0.5, -1. ])

    unit  deltas are whole numbers that count units of this size, as in `Server`; `sum` is then int64
    """

    def __cinit__(self, *args, **kwargs):
        self.buffer = NULL

    def __init__(self, dim, dtype=np.float64, *, unit=None):
        n = checked_dim(dim)
        if self.buffer != NULL:
            raise TypeError("buffer: it is made once; make another one")
        self.dtype = model_dtype("dtype", dtype)
        self.unit = unit_of(unit, None)
        self.dim = n
        self.dtype_code = FB_F32 if self.dtype == np.float32 else FB_F64
        check(fb_buffer_create(self.dtype_code, self.dim, self.unit or 0.0, &self.buffer))

    def __dealloc__(self):
        fb_buffer_destroy(&self.buffer)

    cdef fb_status add_raw(self, const void* delta, double weight) noexcept nogil:
        return fb_buffer_add(self.buffer, self.dtype_code, self.dim, delta, weight, FB_NO_TICKET)

    cdef fb_status step_raw(self, const void* w, double lr, void* w_out) noexcept nogil:
        return fb_buffer_step(self.buffer, self.dtype_code, self.dim, w, lr, w_out)

    cdef int require(self, fb_status status) except -1:
        return refuse(status, "buffer", None, None, 0, None)

    @property
    def _handle(self):
        return <size_t> self.buffer

    @property
    def count(self):
        """How many deltas are in the sum."""
        return counted("buffer", self.buffer, fb_buffer_count(self.buffer))

    @property
    def sum(self):
        """The sum, read-only; valid until the next change of the buffer."""
        cdef cnp.npy_intp shape = self.dim
        cdef int kind = <int> cnp.NPY_FLOAT32 if self.dtype_code == FB_F32 else <int> cnp.NPY_FLOAT64
        if self.unit is not None:
            kind = <int> cnp.NPY_INT64
        cdef const void* values = fb_buffer_sum(self.buffer)
        if values == NULL:
            refuse(FB_ERR_ARGUMENT if self.buffer == NULL else FB_ERR_FORKED, "buffer", None, None, 0, None)
        cdef object array = cnp.PyArray_SimpleNewFromData(1, &shape, kind, <void*> values)
        cnp.set_array_base(array, self)
        cnp.PyArray_CLEARFLAGS(array, cnp.NPY_ARRAY_WRITEABLE)
        return array

    def take_ticket(self):
        """A place in the order in which deltas are added: pass it to one `add`, or to `cancel_ticket`."""
        cdef int64_t ticket
        cdef fb_status status = fb_buffer_take_ticket(self.buffer, &ticket)
        if status != FB_OK:
            refuse(status, "buffer", None, None, 0, None)
        return ticket

    def cancel_ticket(self, ticket):
        """Gives up a ticket: nothing will be added with it, and those after it wait no longer."""
        cdef fb_status status = fb_buffer_cancel_ticket(self.buffer, as_ticket(integer("ticket", ticket)))
        if status != FB_OK:
            refuse(status, "buffer", None, None, 0, ticket)

    def add(self, delta, weight=1.0, *, ticket=None):
        """sum + weight * delta; a delta that is not finite raises, and changes nothing."""
        cdef double factor = as_double("weight", weight)
        cdef object array = delta_array(delta, self.dtype_code, self.dim, self.dtype, self.unit)
        cdef const void* values = address(array)
        cdef fb_dtype kind = dtype_of(array)
        cdef int64_t place = as_ticket(ticket)
        cdef fb_status status
        if not isfinite(factor):
            raise ValueError(f"weight: expected a finite number, got {factor}")
        with nogil:
            status = fb_buffer_add(self.buffer, kind, self.dim, values, factor, place)
        if status != FB_OK:
            refuse(status, "buffer", array, None, 0, ticket, self.dtype)

    def clear(self):
        """Empties the buffer."""
        self.require(fb_buffer_clear(self.buffer))

    def step(self, w, lr, out=None):
        """w - lr * sum, into `out` (which may be w) or a new array; empties the buffer."""
        cdef double factor = as_double("lr", lr)
        model = as_vector("w", w, self.dim, self.dtype)
        target = np.empty(self.dim, self.dtype) if out is None else as_vector("out", out, self.dim, self.dtype)
        if not target.flags.writeable:
            raise ValueError("out: read-only; pass an array that may be written")
        if not isfinite(factor):
            raise ValueError(f"lr: expected a finite number, got {factor}")
        cdef const void* source = address(model)
        cdef void* sink = address(target)
        cdef fb_status status
        with nogil:
            status = self.step_raw(source, factor, sink)
        self.require(status)
        return target if out is None else out

    def close(self):
        """Ends additions: those that wait for their turn raise, and so do later ones."""
        self.require(fb_buffer_close(self.buffer))

    def __len__(self):
        return self.count

    def __reduce__(self):
        raise TypeError("buffer: it does not pickle")

    def __repr__(self):
        return f"<{type(self).__name__}: {self.count} deltas of {self.dim} {self.dtype} weights>"
