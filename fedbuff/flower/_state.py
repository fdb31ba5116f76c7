"""What a run of the strategy keeps on disk, so that another ServerApp can go on: one .npz file.

format, format_number  "fedbuff-flower", 1
about                  JSON: the layout of the model, the number of starts, metrics by step and of the open buffer
server                 the bytes of the file of `fb.Server.save`
log_...                the columns of the arrival log; none where nothing has arrived
other_...              bytes of the arrays that are not floats, by number; `about` has their names, dtypes and shapes
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array

from .. import backends
from .._base.files import open_npz, reading, write_npz
from .._delays.arrival_log import ArrivalLog
from ._records import Layout, Sample

_FORMAT, _FORMAT_NUMBER = "fedbuff-flower", 1
_WHAT = "a checkpoint of fedbuff.flower"
_COLUMNS = ("client", "version", "start_time", "arrive_time")

Metrics = dict[int, dict[str, Any]]  # by server step


@dataclass(slots=True)
class State:
    """All that a run knows but for its tasks in flight, which do not outlive it."""

    server: Any
    others: Sample
    log: ArrivalLog | None
    starts: int
    metrics: dict[str, Metrics]
    pending: list[dict[str, Any]]

    def write(self, path: Path, layout: Layout) -> None:
        about = {
            "layout": layout.describe(),
            "starts": self.starts,
            "metrics": self.metrics,
            "pending": self.pending,
            "others": [[name, array.dtype, list(array.shape), array.stype] for name, array in self.others.items()],
        }
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            saved = Path(folder, "server.npz")
            self.server.save(saved)
            server = np.fromfile(saved, np.uint8)
        arrays: dict[str, Any] = {
            "format": _FORMAT,
            "format_number": np.int64(_FORMAT_NUMBER),
            "about": json.dumps(about),
            "server": server,
        }
        if self.log is not None:
            arrays["log_client"] = self.log.client_ids[self.log.client]
            arrays |= {f"log_{name}": getattr(self.log, name) for name in _COLUMNS[1:]}
        for number, array in enumerate(self.others.values()):
            arrays[f"other_{number}"] = np.frombuffer(array.data, np.uint8)
        write_npz(path, arrays)

    @classmethod
    def read(cls, path: Path, layout: Layout, strategy: Any) -> State:
        """The state in a file; FileError where it is damaged, or of another model or strategy."""
        with reading(path, _WHAT), open_npz(path, _WHAT) as file:
            if "format" not in file or file.text("format") != _FORMAT:
                raise ValueError("it holds something else")
            if int(file["format_number"]) != _FORMAT_NUMBER:
                raise ValueError(f"its format is number {int(file['format_number'])}, this reader's {_FORMAT_NUMBER}")
            about = json.loads(file.text("about"))
            if about["layout"] != layout.describe():
                raise ValueError("its model has other arrays than initial_arrays; remove the file to start anew")
            with tempfile.TemporaryDirectory() as folder:
                saved = Path(folder, "server.npz")
                file["server"].tofile(saved)
                server = backends.current().Server.load(saved, strategy)
            log = None
            if "log_client" in file:
                client, *rest = (file[f"log_{name}"] for name in _COLUMNS)
                log = ArrivalLog(client, rest[2], version=rest[0], start_time=rest[1])
            others = {
                name: Array(dtype, tuple(shape), stype, file[f"other_{number}"].tobytes())
                for number, (name, dtype, shape, stype) in enumerate(about["others"])
            }
            metrics = {
                kind: {int(step): values for step, values in steps.items()} for kind, steps in about["metrics"].items()
            }
            return cls(server, others, log, int(about["starts"]), metrics, list(about["pending"]))
