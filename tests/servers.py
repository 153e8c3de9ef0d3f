"""A server on this machine, so that tests can download."""

import contextlib
import http.server
import threading


@contextlib.contextmanager
def serve(handler):
    """The address of a server whose requests `handler`, a class, answers."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def files(folder, asked):
    """A handler that answers with the files of `folder`, and adds the paths that it is asked for to `asked`."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(folder))

        def do_GET(self):
            asked.append(self.path)
            super().do_GET()

        def log_message(self, *_):
            pass

    return Handler
