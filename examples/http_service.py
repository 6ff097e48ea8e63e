"""A saved model behind HTTP: ``python http_service.py model.gp``; POST a JSON list of rows, get mean and std."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import gigagp


class Handler(BaseHTTPRequestHandler):
    """Answer rows with predictions, and wrong rows with the reason."""

    def do_POST(self) -> None:
        """Predict."""
        try:
            rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            mean, std = self.server.model.predict(rows, return_std=True)
            code, answer = 200, {"mean": mean.tolist(), "std": std.tolist()}
        except ValueError as error:  # no JSON, or InvalidInputError
            code, answer = 400, {"error": str(error)}
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 8000), Handler)
    server.model = gigagp.load(sys.argv[1])
    server.serve_forever()
