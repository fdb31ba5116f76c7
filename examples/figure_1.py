"""Figure 1 of the paper: the update schedule of FedBuff (left) beside that of FedAvg (right).

n = 5 clients, Q = 3 local steps, buffer size K = 2 for FedBuff and sampling rate 0.6 for FedAvg, on the same delays.
Usage: python figure_1.py [picture.png]
"""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt

import fedbuff as fb


def main(path: str = "figure_1.png") -> None:
    trace = fb.Trace(
        client=[0, 1, 2, 3, 4],
        download=[0.5, 0.4, 0.6, 0.5, 0.7],
        compute=[3.0, 4.2, 2.4, 6.0, 4.8],
        upload=[0.6, 0.8, 0.5, 0.9, 0.7],
    )
    buffered = fb.schedule(trace, fb.FedBuff(buffer_size=2), max_time=18.0, seed=2)
    synchronous = fb.schedule(trace, fb.FedAvg(rate=0.6), max_time=18.0, seed=2)

    figure, (left, right) = plt.subplots(1, 2, figsize=(13.0, 3.9), layout="constrained", sharey=True)
    fb.plots.schedule(buffered, trace, local_steps=3, ax=left)
    fb.plots.schedule(synchronous, trace, local_steps=3, ax=right, legend=False)
    for axes, name, schedule in ((left, "FedBuff, K = 2", buffered), (right, "FedAvg, sampling rate 0.6", synchronous)):
        axes.set_title(f"{name}: {schedule.n_steps} server steps, {schedule.n_arrivals} uploads", fontsize=11, pad=18)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:])
