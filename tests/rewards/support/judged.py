"""An endpoint on the loopback that answers as it is told, for judges to ask."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.waiting import PATIENCE_S


class Endpoint:
    """Answers by `answer(body)`: a message, a status with a text, or None for no answer at all."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = []
        self.keys = []
        self.num_open = 0
        self.over = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                endpoint.num_open += 1
                try:
                    self.reply()
                finally:
                    endpoint.num_open -= 1

            def reply(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                endpoint.asked.append(body)
                endpoint.keys.append(self.headers["authorization"])
                said = endpoint.answer(body)
                if said is None:
                    self.connection.settimeout(PATIENCE_S)
                    while not endpoint.over.is_set() and self.connection.recv(1):
                        pass
                    return
                status, text = said if isinstance(said, tuple) else (200, completion(said))
                self.send_response(status)
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                for part in (text[:7].encode(), text[7:].encode()):
                    if part:
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *given):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def serve(self):
        self._server.serve_forever(poll_interval=0.01)

    def close(self):
        self.over.set()
        self._server.shutdown()
        self._server.server_close()


def completion(message):
    if isinstance(message, str):
        message = {"role": "assistant", "content": message}
    return json.dumps({"choices": [{"message": message}], "usage": {"total_tokens": 100}})


def tool_call(name, **given):
    called = {"name": name, "arguments": json.dumps(given)}
    call = {"id": "c1", "type": "function", "function": called}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@contextmanager
def endpoint(answer):
    one = Endpoint(answer)
    thread = threading.Thread(target=one.serve)
    thread.start()
    try:
        yield one
    finally:
        one.close()
        thread.join()
