"""Plain versions of what fedbuff does, as good as we can write them, to be measured beside it.

They need no fedbuff, so that each runs in whatever environment has its library. `data` holds the workloads; each
`with_<library>` has functions named for what is measured (replay, sgd, aggregate, schedule, evaluate) that return a
callable doing one turn of the work. Before it is timed, each is compared with an answer that fedbuff wrote.

`peer_<library>` runs another library on a workload; its algorithm is its own, so that it only has to learn.
"""
