"""Each door and what it gives, as a user's program has them."""
from pathlib import Path

from transformer_course import Encoder, Translator, Writer, load
from transformer_course.data.corpora import Corpus, Pair
from transformer_course.pipelines.searching import SearchOptions
from transformer_course.published.folders import model_folder
from transformer_course.published.pretrained import from_pretrained, load_tokenizer
from transformer_course.models.transformer import Transformer
from transformer_course.search.beam import beam_search
from transformer_course.training.settings import Settings
from transformer_course.training.trainer import fit

corpus = Corpus.from_pairs([("a b", "b a")], pair="en-fr")
translator = Translator.train(corpus, preset="micro", steps=3, folder=Path("folder"))
texts: list[str] = translator.translate(["a b"], beam_size=2)
score: float = translator.nbest(["a b"], SearchOptions(num_return_sequences=2))[0][0].score
bleu: float | None = translator.evaluate([Pair("a", "b")], "test").bleu
translator.to("cpu").save_pretrained("folder")
again: Translator = Translator.from_pretrained("folder", device="cpu", revision=None)
writer = Writer.train("micro-text", model="gru-lm", minutes=1.0)
told: list[str] = writer.write(["on monday"], 20, do_sample=True, top_p=0.9)
encoder = Encoder.from_pretrained("words")
vectors = encoder.encode(["a"]) @ encoder.encode(["b"]).T
filled: list[list[list[tuple[str, float]]]] = encoder.fill(["a [MASK]"])
labels: list[str] = encoder.classify(["a"])
thing = load("folder")
if isinstance(thing, Translator):
    thing.translate(["a"])
folder: Path = model_folder("gpt2", revision="main", cache_dir="cache")
model, tokenizer = from_pretrained(folder, model_type="gpt2"), load_tokenizer(folder)
ids: list[int] = tokenizer.encode("a", special=True)
found = beam_search(Transformer(10, 10).eval(), vectors.long(), beam_size=2, max_len=5).tokens
