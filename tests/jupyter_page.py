"""A JupyterLab server with notebooks of one's own, and a browser that looks at them."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat

ROOT = Path(__file__).parent.parent
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDGETS = "application/vnd.jupyter.widget-state+json"


class Lab:
    """The server. It keeps its settings and notebooks in `folder` and saves the state of widgets with a notebook."""

    def __init__(self, folder):
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        settings = folder / "settings"
        for name, value in {
            "@jupyter-widgets/jupyterlab-manager/plugin": {"saveState": True},
            "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
            "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
        }.items():
            file = settings / f"{name}.jupyterlab-settings"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(value))
        own = {f"JUPYTER_{name}_DIR": str(folder / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
        own |= {"JUPYTERLAB_SETTINGS_DIR": str(settings), "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces")}
        own |= {"IPYTHONDIR": str(folder / "ipython"), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
        kernel = folder / "data" / "kernels" / "python3"
        kernel.mkdir(parents=True)
        arguments = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        (kernel / "kernel.json").write_text(
            json.dumps({"argv": arguments, "display_name": "Python 3", "language": "python"})
        )
        self.notebooks = folder / "notebooks"
        self.notebooks.mkdir()
        self.log = (folder / "log").open("w")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={self.port}"),
                *(
                    "--ServerApp.port_retries=0",
                    "--IdentityProvider.token=secret",
                    f"--ServerApp.root_dir={self.notebooks}",
                ),
            ],
            env={**os.environ, **own},
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )
        self.wait()

    def ask(self, path, method="GET"):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/api{path}?token=secret", method=method)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.read()

    def end_kernels(self):
        """End what runs: a kernel keeps its memory until then."""
        for session in json.loads(self.ask("/sessions")):
            self.ask(f"/sessions/{session['id']}", "DELETE")

    def wait(self):
        until = time.monotonic() + 60
        while True:
            try:
                self.ask("")
                return
            except (urllib.error.URLError, OSError) as error:
                if self.process.poll() is not None or time.monotonic() > until:
                    raise AssertionError(f"no server: {error}\n{(self.folder / 'log').read_text()}") from error
                time.sleep(0.2)

    def write(self, name, *cells):
        """A notebook of these cells, and its URL in a workspace of its own."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, self.notebooks / name)
        workspace = name.removesuffix(".ipynb")
        return f"http://127.0.0.1:{self.port}/lab/workspaces/{workspace}/tree/{name}?token=secret"

    def saved(self, name):
        return nbformat.read(self.notebooks / name, as_version=4)

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()


class Notebook:
    """A notebook that is open in the browser."""

    def __init__(self, lab, page, name, *cells):
        self.lab, self.page, self.name = lab, page, name
        page.goto(lab.write(name, *cells))
        page.locator(".jp-Notebook-cell").nth(len(cells) - 1).wait_for(timeout=60_000)
        page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for(timeout=60_000)

    def cell(self, index):
        return self.page.locator(".jp-Notebook-cell").nth(index)

    def prompt(self, index):
        """The number of a cell as it is written beside it: [ ]: before it has run, [*]: while it does."""
        return self.cell(index).locator(".jp-InputArea-prompt").inner_text()

    def start(self, index):
        """Run a cell without waiting for it; its prompt before that."""
        before = self.prompt(index)
        for _ in range(5):
            for dialog in self.page.locator(".jp-Dialog").all():
                raise AssertionError(f"JupyterLab asks: {dialog.inner_text()}")
            self.cell(index).locator(".jp-InputArea-prompt").click()
            self.cell(index).and_(self.page.locator(".jp-mod-selected")).wait_for(timeout=10_000)
            self.page.locator(".jp-Notebook.jp-mod-commandMode").wait_for(timeout=10_000)
            self.page.keyboard.press("Control+Enter")
            until = time.monotonic() + 3  # a server that has just begun may let one go by
            while time.monotonic() < until:
                if self.prompt(index) != before and self.prompt(index).strip("[]: "):
                    return before
                time.sleep(0.01)
        raise AssertionError(f"cell {index} does not run")

    def ended(self, index, before):
        """Wait for the end of a cell that had the prompt `before`."""
        until = time.monotonic() + 60
        while (now := self.prompt(index)) == before or not now.strip("[]: ").isdecimal():
            assert time.monotonic() < until, f"cell {index} does not end, its prompt is {now}"
            time.sleep(0.01)

    def run(self, index):
        """Run a cell to its end; the text that it put out."""
        self.ended(index, self.start(index))
        return "\n".join(self.cell(index).locator(".jp-OutputArea-output[data-mime-type*=stdout]").all_inner_texts())

    def sources(self):
        return [
            cell.inner_text() for cell in self.page.locator(".jp-Notebook-cell .jp-InputArea-editor .cm-content").all()
        ]

    def save(self):
        """Save, and what was saved."""
        before = (self.lab.notebooks / self.name).stat().st_mtime_ns
        self.page.keyboard.press("Control+s")
        until = time.monotonic() + 20
        while (self.lab.notebooks / self.name).stat().st_mtime_ns == before:
            assert time.monotonic() < until, "the notebook was not saved"
            time.sleep(0.05)
        time.sleep(0.2)
        return self.lab.saved(self.name)
