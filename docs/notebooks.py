"""Runs the notebooks of docs/notebooks, or those that are named, and keeps what they show.

    python docs/notebooks.py [trace_to_answer ...]

Needs `pip install "fedbuff[docs,plot]"`, and torch for pytorch_model. What goes to the error output (bars, warnings) is
left out, and so is all that differs from one call to the next.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent / "notebooks"


def main() -> None:
    names = sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    for name in names:
        path = FOLDER / f"{name}.ipynb"
        notebook = nbformat.read(path, nbformat.NO_CONVERT)
        NotebookClient(notebook, timeout=600, kernel_name="python3", record_timing=False).execute()
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"}}
        nbformat.write(notebook, path)
        print(path)


if __name__ == "__main__":
    main()
