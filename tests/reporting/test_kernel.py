"""The bar and the stop button in a real Jupyter kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

CELL = """
from fedsink.reporting.progress import Progress
with Progress(300, "central") as progress:
    for round in range(1, 301):
        progress.update(round, loss=0.5)
"""
STOPPED = """
import _thread, threading
threading.Timer({seconds}, _thread.interrupt_main).start()
import fedsink
fedsink.simulate(engine="local", clients=2, rounds=100000, eps=10, seed=0, folder="cut")
"""
RESUMED = """
run = fedsink.load("cut")
run.finished, len(run.metrics) > 0
"""


@pytest.mark.slow
def test_one_output_that_is_updated_in_place(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    client = NotebookClient(notebook, kernel_name="python3", timeout=120)
    client.execute(cwd=str(tmp_path))
    (output,) = notebook.cells[0].outputs
    assert output.output_type == "display_data"
    assert '<progress value="300" max="300"></progress>' in output.data["text/html"]
    assert "round 300/300  loss 0.5" in output.data["text/plain"]


@pytest.mark.slow
def test_the_stop_button_ends_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    cells = [STOPPED.format(seconds=20), RESUMED]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = NotebookClient(notebook, kernel_name="python3", timeout=300, allow_errors=True)
    client.execute(cwd=str(tmp_path))
    error = next(o for o in notebook.cells[0].outputs if o.output_type == "error")
    assert error.ename == "KeyboardInterrupt"
    assert "Continue with: fedsink.resume(" in error.evalue
    assert notebook.cells[1].outputs[0].data["text/plain"] == "(False, True)"
