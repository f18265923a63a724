"""A Hugging Face Hub of a few folders on this machine: enough of its interface for `snapshot_download`."""
import hashlib
import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def _handler(repositories: dict[str, Path], cut: set[str]):
    """Serve each repository's folder; of the files in `cut` only the first half arrives."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *words):
            pass

        def _answer(self, status: int, content: bytes, headers: dict, body: bool, sent: int | None = None):
            self.send_response(status)
            for name, value in ({"Content-Length": len(content)} | headers).items():
                self.send_header(name, str(value))
            self.end_headers()
            if body:
                self.wfile.write(content[:sent])
            if sent is not None:
                self.close_connection = True

        def _serve(self, body: bool):
            path = self.path.split("?")[0].strip("/")
            for name, folder in repositories.items():
                if path in (f"api/models/{name}", f"api/models/{name}/revision/main"):
                    files = [{"rfilename": file.name} for file in sorted(folder.iterdir())]
                    told = {"id": name, "modelId": name, "sha": COMMIT, "siblings": files, "tags": []}
                    return self._answer(200, json.dumps(told).encode(), {"Content-Type": "application/json"}, body)
                if path.startswith(f"api/models/{name}/tree/"):
                    entries = [{"type": "file", "path": file.name, "size": file.stat().st_size, "oid": hashlib.sha1(file.read_bytes()).hexdigest()}
                               for file in sorted(folder.iterdir())]
                    return self._answer(200, json.dumps(entries).encode(), {"Content-Type": "application/json"}, body)
                start = f"{name}/resolve/"
                file = folder / path.rpartition("/")[2]
                if path.startswith(start) and file.is_file():
                    content = file.read_bytes()
                    headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
                    return self._answer(200, content, headers, body, len(content) // 2 if file.name in cut else None)
            return self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)

        def do_GET(self):
            self._serve(True)

        def do_HEAD(self):
            self._serve(False)

    return Handler


@contextmanager
def serving(repositories: dict[str, Path], cut: set[str] = frozenset()):
    """The address of the hub, inside the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(repositories, set(cut)))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
