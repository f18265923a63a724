"""Serve a trained translator on this machine: a page to type in, and an address for programs.

    python examples/serve.py FOLDER --port 8000

FOLDER is what `transformer-course train` wrote, a published model, or a name on the Hugging Face Hub.
Then open http://127.0.0.1:8000 in a browser, or ask from a program:

    curl http://127.0.0.1:8000/translate -H "Content-Type: application/json" \\
         -d '{"sentences": ["jack saw jill"]}'

It needs nothing beyond the library and Python. It has no login and no encryption: before you let others in,
put it behind a web server that has both.
"""
import argparse
import json
import math
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore

from transformer_course import Translator
from transformer_course.pipelines.searching import SearchOptions

MOST_BYTES, MOST_SENTENCES = 1_000_000, 256    # of one request
AT_ONCE = 4                                    # requests that are translated at the same time; others wait
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Translate</title>
<style>
 body { font: 1rem/1.5 sans-serif; max-width: 44rem; margin: 2rem auto; padding: 0 1rem }
 body { color: #222; background: #fff }
 textarea { width: 100%; box-sizing: border-box; font: inherit }
 button { font: inherit; padding: .4rem 1rem }
 li { margin: .5rem 0 } .note { color: #a33 } .score { color: #595959 }
</style>
<h1>Translate</h1>
<form id="form">
 <label for="text">Sentences, one a line</label>
 <textarea id="text" rows="5" autofocus></textarea>
 <button>Translate</button>
</form>
<ol id="answers" aria-live="polite"></ol>
<script>
const list = document.getElementById("answers");
const line = (parent, words, kind) => {
  const part = document.createElement("div");
  part.textContent = words; part.className = kind; parent.append(part);
};
document.getElementById("form").addEventListener("submit", async event => {
  event.preventDefault();
  const sentences = document.getElementById("text").value.split("\\n").filter(text => text.trim());
  const reply = await fetch("translate", {method: "POST", headers: {"Content-Type": "application/json"},
                                          body: JSON.stringify({sentences})});
  const told = await reply.json();
  list.replaceChildren();
  for (const answer of told.answers ?? [{error: told.error}]) {
    const item = document.createElement("li");
    if (answer.error) line(item, answer.error, "note");
    for (const one of answer.texts ?? []) {
      line(item, one.text, "text");
      line(item, "score " + (one.score === null ? "none" : one.score.toFixed(2)), "score");
    }
    if (answer.unknown?.length) line(item, "unknown: " + answer.unknown.join(", "), "note");
    list.append(item);
  }
});
</script>
</html>
"""


def wanted(body: bytes) -> tuple[list[str], SearchOptions]:
    """The sentences and options of a request. Raises ValueError for a request that makes no sense."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(asked, dict) or asked.keys() - {"sentences", "beam_size", "num_return_sequences"}:
        raise ValueError("give an object with sentences and, if you like, beam_size and num_return_sequences")
    sentences = asked.pop("sentences", None)
    if not isinstance(sentences, list) or not 0 < len(sentences) <= MOST_SENTENCES:
        raise ValueError(f"sentences must be a list of 1 to {MOST_SENTENCES} strings")
    return sentences, SearchOptions(**asked)


def answers(translator: Translator, sentences: list[str], options: SearchOptions) -> list[dict]:
    """For each sentence its translations with scores, and unknown words; or what is wrong with it."""
    names = [f"sentence {number}" for number in range(1, len(sentences) + 1)]
    rows = translator.rows_or_reasons(sentences, names)
    good = [sentence for sentence, row in zip(sentences, rows) if isinstance(row, list)]
    found = iter(zip(translator.scored_rows([row for row in rows if isinstance(row, list)], options),
                     translator.unknown_words(good)))
    return [_answer(*next(found)) if isinstance(row, list) else {"error": str(row)} for row in rows]


def _answer(texts: list, unknown: list[str]) -> dict:
    scored = [{"text": one.text, "score": one.score if math.isfinite(one.score) else None} for one in texts]
    return {"texts": scored, "unknown": unknown}


def handler(translator: Translator) -> type[BaseHTTPRequestHandler]:
    """What answers the requests to a server of this translator."""
    free = BoundedSemaphore(AT_ONCE)

    class Handler(BaseHTTPRequestHandler):
        timeout = 30                           # seconds that a slow client may take to send its request

        def do_GET(self):
            if self.path != "/":
                return self._say(404, {"error": f"there is no page {self.path}"})
            self._send(200, "text/html; charset=utf-8", PAGE.encode())

        def do_POST(self):
            length = self.headers.get("Content-Length", "")
            length = int(length) if length.isdecimal() else 0
            body = self.rfile.read(min(length, 10 * MOST_BYTES))      # all of it, or no refusal is read
            if self.path != "/translate":
                return self._say(404, {"error": f"there is nothing at {self.path}"})
            if self.headers.get_content_type() != "application/json":   # other sites' pages cannot send it
                return self._say(415, {"error": "the request must have Content-Type: application/json"})
            if length > MOST_BYTES:
                return self._say(413, {"error": f"the request must have at most {MOST_BYTES} bytes"})
            try:
                sentences, options = wanted(body)
                with free:
                    found = answers(translator, sentences, options)
            except (ValueError, TypeError) as problem:
                return self._say(400, {"error": str(problem)})
            self._say(200, {"answers": found})

        def _say(self, status: int, told: dict):
            self._send(status, "application/json; charset=utf-8", json.dumps(told).encode())

        def _send(self, status: int, kind: str, content: bytes):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    return Handler


def server(folder: str, port: int = 8000, host: str = "127.0.0.1") -> ThreadingHTTPServer:
    """A server of the translator in a folder; `serve_forever` starts it."""
    return ThreadingHTTPServer((host, port), handler(Translator.from_pretrained(folder)))


if __name__ == "__main__":
    words = argparse.ArgumentParser(description="Serve a trained translator on this machine.")
    words.add_argument("folder", help="what `train` wrote, or a name on the Hugging Face Hub")
    words.add_argument("--port", type=int, default=8000)
    words.add_argument("--host", default="127.0.0.1", help="0.0.0.0: let other machines in")
    given = words.parse_args()
    with server(given.folder, given.port, given.host) as running:
        print(f"http://{given.host}:{running.server_port} (Ctrl-C ends it)", flush=True)
        try:
            running.serve_forever()
        except KeyboardInterrupt:
            print("stopped")
