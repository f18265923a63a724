"""x"""

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from transformer_course.data.corpora import Pair
from transformer_course.data.text import Tokenizer
from transformer_course.pipelines.decoding import translate
from transformer_course.pipelines.searching import SearchOptions


TAG = "¤"                # a word that no text has: before a source that a model has written


def back_translated(
    texts: Sequence[str],        # real sentences of the target language
    model: nn.Module,            # translates from the target language to the source language
    tokenizer: Tokenizer,
    beam_size: int = 1,
) -> list[Pair]:
    """Pairs for training: each source is written by the model, each target is real [Sennrich et al. 2016].

    Raises ValueError as `translate`.
    """
    sources = translate(model.eval(), tokenizer, list(texts), SearchOptions(beam_size=beam_size))
    return [Pair(source, text) for source, text in zip(sources, texts)]


def tagged(pairs: Sequence[Pair], tag: str = TAG) -> list[Pair]:
    """The same pairs with a tag before each source, which says that it is not real [Caswell et al. 2019].

    Raises ValueError if the tag is not one word, or if a source begins with it already.
    """
    if len(tag.split()) != 1 or tag != tag.strip():
        raise ValueError(f"tagged: tag must be one word, not {tag!r}")
    if any(pair.source.split()[:1] == [tag] for pair in pairs):
        raise ValueError(f"tagged: a source begins with {tag!r} already")
    return [replace(pair, source=f"{tag} {pair.source}") for pair in pairs]


def gap_closed(without: float, with_text: float, gold: float) -> float:
    """The share of the way from the score without the text to that with gold translations of it.

    Raises ValueError if gold translations do not help.
    """
    if not gold > without:
        raise ValueError(f"gap_closed: gold={gold} must be above without={without}")
    return (with_text - without) / (gold - without)
