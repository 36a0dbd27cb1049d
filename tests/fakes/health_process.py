"""A process that answers /health and /metrics after starting a child: `python health_process.py PORT`."""

from __future__ import annotations

import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"up 1\n" if self.path == "/metrics" else b"")

    def log_message(self, *arguments: object) -> None:
        print("request", self.path, flush=True)


if __name__ == "__main__":
    print("warming up", flush=True)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
