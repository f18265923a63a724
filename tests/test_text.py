"""Text: nothing is lost, training is deterministic, and the file is one that Hugging Face's own classes read."""
import copy
import os
import pickle
import subprocess
import sys
import unicodedata

import pytest
import torch
from hypothesis import given, settings, strategies as st

from transformer_course.data.text import (BYTES, EOS, KINDS, PAD, SPECIALS, UNK, Tokenizer, pad, source_ids,
                                          target_ids)

SENTENCES = ["the children saw a big lion, and ran", "bachchon ne ek baraa sher dekhaa", "a lion's cub; it sleeps (often)",
             "we saw the lions near the river", "the child is big"] * 3
TOKENIZERS = {kind: Tokenizer.train(SENTENCES, kind, size=400) for kind in KINDS}
BPE = TOKENIZERS["bpe"]
any_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
spaced = st.lists(st.text("abcdehiln.,'-▁<>é़\u0301राम", min_size=1, max_size=6), max_size=6).map(" ".join)


@settings(deadline=None, max_examples=300)
@given(any_text | spaced)
def test_bpe_restores_any_text(text):
    assert BPE.decode(BPE.encode(text)) == BPE.normalise(text)
    assert not set(BPE.encode(text)) & {0, 1, 2, UNK}


@settings(deadline=None, max_examples=200)
@given(spaced | st.text(" \t\n\r\x0b\x0c\x1c\x1f\x85\u3000\u2028ab", max_size=12))
def test_normal_form_is_the_documented_one(text):
    expected = " ".join(unicodedata.normalize("NFC", text).replace("▁", "_").split())
    for tokenizer in TOKENIZERS.values():
        assert tokenizer.normalise(text) == expected == tokenizer.normalise(expected)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=150)
@given(text=any_text | spaced)
def test_words_of_pieces_are_those_of_split(kind, text):
    tokenizer, words = TOKENIZERS[kind], text.split()
    owners = tokenizer.word_of_piece(text)
    assert len(owners) == len(tokenizer.encode(text)) == len(tokenizer.pieces(text))
    assert owners == sorted(owners) and sorted(set(owners)) == list(range(len(words)))


@settings(deadline=None, max_examples=100)
@given(spaced, st.sampled_from([0.1, 0.5, 1.0]), st.integers(0, 9))
def test_dropped_merges_lose_no_text_and_change_nothing(text, dropout, seed):
    before = BPE.encode(text)
    dropped = BPE.encode_many([text, text], dropout=dropout, seed=seed)
    assert BPE.decode_many(dropped) == [BPE.normalise(text)] * 2
    assert dropped == BPE.encode_many([text, text], dropout=dropout, seed=seed)
    assert len(dropped[0]) >= len(before) and BPE.encode(text) == before


@settings(deadline=None, max_examples=100)
@given(any_text | spaced)
def test_our_cutting_equals_the_library_s(text):
    assert BPE.encode_many([text], dropout=1e-15) == BPE.encode_many([text])


def test_merges_do_not_cross_punctuation():
    tokenizer = Tokenizer.train(["lion, lion, lion, lion,"] * 5, size=300)
    assert tokenizer.pieces("lion,") == ["▁lion", ","]


def test_the_same_sentences_give_the_same_file(tmp_path):
    """Twice in this process, and in others with one thread, several threads and another hash seed."""
    code = ("import sys; from test_text import KINDS, SENTENCES, Tokenizer\n"
            "for kind in KINDS: Tokenizer.train(SENTENCES, kind, size=400).save(f'{sys.argv[1]}-{kind}')")
    for threads in ("1", "3"):
        env = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads, "PYTHONPATH": os.path.dirname(__file__)}
        subprocess.run([sys.executable, "-c", code, tmp_path / threads], env=env, check=True)
    for kind in KINDS:
        TOKENIZERS[kind].save(tmp_path / kind)
        assert len({(tmp_path / name).read_bytes() for name in (kind, f"1-{kind}", f"3-{kind}")}) == 1
        assert Tokenizer.train(iter(SENTENCES), kind, size=400).to_json() == TOKENIZERS[kind].to_json()


@pytest.mark.parametrize("kind", KINDS)
def test_copies_are_equal_and_keep_special_tokens_out_of_text(kind, tmp_path):
    tokenizer = TOKENIZERS[kind]
    tokenizer.save(tmp_path)
    for twin in (pickle.loads(pickle.dumps(tokenizer)), copy.deepcopy(tokenizer), Tokenizer.load(tmp_path)):
        assert twin.to_json() == tokenizer.to_json() and twin.kind == kind and len(twin) == len(tokenizer)
        ids = twin.encode("a <eos> <pad> b <bos>")
        assert ids == tokenizer.encode("a <eos> <pad> b <bos>") and not set(ids) & {0, 1, 2}


def test_hugging_face_reads_the_file(tmp_path):
    transformers = pytest.importorskip("transformers")
    BPE.save(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for sentence in [*SENTENCES, "राम  school गया! 🙂"]:
        assert theirs.encode(sentence, add_special_tokens=False) == BPE.encode(sentence)


def test_rare_words_fall_to_unknown_and_frequent_ones_stay():
    words = Tokenizer.train(["a a a b b c", "d"], "words", size=6)
    assert words.pieces_of(range(len(words))) == [*SPECIALS, "a", "b"]
    assert words.pieces("c a d") == ["<unk>", "a", "<unk>"] and words.decode(words.encode("c a")) == "<unk> a"


def test_decoding_stops_at_the_end_and_takes_tensors():
    ids = target_ids(BPE, "the lion")
    assert ids[0] == BPE.bos_id and ids[1:] == source_ids(BPE, "the lion") and ids[-1] == BPE.eos_id
    batch = pad([ids, ids[:2], [EOS, *ids]], BPE.pad_id)
    assert batch.shape == (3, len(ids) + 1)
    assert BPE.decode_many(batch) == ["the lion", BPE.decode(ids[:2]), ""]
    assert BPE.decode(batch[0]) == "the lion" and BPE.decode([]) == ""


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.integers(0, 50), max_size=9), min_size=1, max_size=5), st.integers(0, 60))
def test_pad_is_a_rectangle_of_the_rows(rows, filling):
    batch = pad(rows, filling)
    assert batch.shape == (len(rows), max(map(len, rows))) and batch.dtype == torch.int64
    for row, padded in zip(rows, batch.tolist()):
        assert padded[:len(row)] == row and set(padded[len(row):]) <= {filling}


@pytest.mark.parametrize("action, message", [
    (lambda: Tokenizer.train(SENTENCES, "syllables"), "kind='syllables' is unknown: choose one of bpe, words, characters"),
    (lambda: Tokenizer.train([]), "sentences hold no text to learn from (0 given)"),
    (lambda: Tokenizer.train([" \n"], "words"), "sentences hold no text to learn from (1 given)"),
    (lambda: Tokenizer.train("text"), "sentences must be a list of strings, and is one string: 'text'"),
    (lambda: Tokenizer.train([b"text"]), "a sentence must be a string, and is bytes: \"b'text'\""),
    (lambda: Tokenizer.train(["ab"], size=262), "need at least 263"),
    (lambda: Tokenizer.train(["ab"], "characters", size=4), "size=4 is too small"),
    (lambda: BPE.encode("a\ud800"), "sentence is not valid Unicode at character 1"),
    (lambda: BPE.decode([5, -1]), f"id -1 is not in the vocabulary: ids go from 0 to {len(BPE) - 1}"),
    (lambda: BPE.pieces_of([len(BPE)]), f"id {len(BPE)} is not in the vocabulary"),
    (lambda: BPE.encode_many(["a"], dropout=1.5), "dropout=1.5"),
    (lambda: TOKENIZERS["words"].encode_many(["a"], dropout=0.5), "kind='words'"),
    (lambda: BPE.encode_many("text"), "sentences must be a list of strings"),
    (lambda: pad([]), "sequences is empty"),
    (lambda: Tokenizer.from_json("{}"), "not a tokenizer"),
])
def test_errors_name_the_value(action, message):
    with pytest.raises(ValueError) as error:
        action()
    assert message in str(error.value) and "\n" not in str(error.value)


def test_smallest_size_is_accepted():
    assert len(Tokenizer.train(["ab"], size=263)) == 263 == len(SPECIALS) + len(BYTES) + 3


def test_damaged_and_foreign_files(tmp_path):
    file = tmp_path / "tokenizer.json"
    with pytest.raises(FileNotFoundError, match="no tokenizer at"):
        Tokenizer.load(file)
    whole = BPE.to_json()
    foreign = whole.replace("<eos>", "</s>")
    for damaged in (b"", whole.encode()[:-100], b"\xff\xfe\x00", foreign.encode()):
        file.write_bytes(damaged)
        with pytest.raises(ValueError) as error:
            Tokenizer.load(tmp_path)
        assert str(file) in str(error.value) and "\n" not in str(error.value)
    assert PAD == 0
