"""The other libraries behind one interface, with this library's weights wherever they have a place for them.

`Peer.loss(src, tgt)` for training; for decoding `decode(src, beam_size, length)` of those that search with a beam (their
`beams` is True) and `decode(src, 1, length)` of those that only take the likeliest word. All take this library's token
ids: 0 padding, 1 BOS, 2 EOS. A peer that is not installed raises ImportError when it is made.
"""
import sys
import tempfile
import types

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transformer_course.models.functional import causal_mask, padding_mask
from transformer_course.models.positions import sinusoids
from transformer_course.models.transformer import Transformer

PAD, BOS, EOS, SMOOTHING = 0, 1, 2, 0.1
LONGEST = 128   # positions that peers with a fixed table get


def smoothed(logits: Tensor, tgt: Tensor) -> Tensor:
    """PyTorch's own smoothed cross-entropy over real target tokens."""
    return F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=PAD, label_smoothing=SMOOTHING)


class TorchTransformer(nn.Module):
    """torch.nn.Transformer between embeddings, positions and an ordinary projection and loss."""

    beams = False

    def __init__(self, ours: Transformer, sizes: dict):
        super().__init__()
        self.body = nn.Transformer(sizes["d_model"], sizes["n_heads"], sizes["n_layers"], sizes["n_layers"], sizes["d_ff"],
                                   sizes["dropout"], batch_first=True, norm_first=sizes["norm"] == "pre")
        self.embedding, self.drop = nn.Embedding(*ours.tgt_embedding.weight.shape), nn.Dropout(sizes["dropout"])
        self.positions = ours.tgt_embedding.positions
        if sizes["norm"] == "post":      # it ends each stack with a norm that the paper's model has not
            self.body.encoder.norm = self.body.decoder.norm = None
        self.copy(ours)

    @torch.no_grad()
    def copy(self, ours: Transformer) -> None:
        """Take over our weights."""
        self.embedding.weight.copy_(ours.tgt_embedding.weight)
        for stack, twin in ((ours.encoder, self.body.encoder), (ours.decoder, self.body.decoder)):
            for a, b in zip(stack.layers, twin.layers, strict=True):
                for mine, other in zip(attentions(a), (b.self_attn, getattr(b, "multihead_attn", None))):
                    weights, biases = inputs(mine)
                    other.in_proj_weight.copy_(torch.cat(weights))
                    other.in_proj_bias.copy_(torch.cat(biases))
                    other.out_proj.load_state_dict(mine.out_proj.state_dict())
                b.linear1.load_state_dict(a.feed_forward.expand.state_dict())
                b.linear2.load_state_dict(a.feed_forward.contract.state_dict())
                for number, norm in enumerate(norms(a), start=1):
                    getattr(b, f"norm{number}").load_state_dict(norm.state_dict())

    def embed(self, tokens: Tensor) -> Tensor:
        return self.drop(self.embedding(tokens) * self.embedding.embedding_dim**0.5 + self.positions(0, tokens.shape[1]))

    def loss(self, src: Tensor, tgt: Tensor) -> Tensor:
        real, later = padding_mask(src, PAD), ~causal_mask(tgt.shape[1] - 1, tgt.device)
        hidden = self.body(self.embed(src), self.embed(tgt[:, :-1]), tgt_mask=later, tgt_is_causal=True,
                           src_key_padding_mask=~real, memory_key_padding_mask=~real)
        return smoothed(hidden @ self.embedding.weight.T, tgt)

    @torch.inference_mode()
    def decode(self, src: Tensor, beam_size: int, length: int) -> Tensor:   # (B, length)
        """The likeliest words, exactly `length`; it has no cache, so the prefix is read again for each."""
        padded, words = ~padding_mask(src, PAD), src.new_full((len(src), 1), BOS)
        memory = self.body.encoder(self.embed(src), src_key_padding_mask=padded)
        for t in range(1, length + 1):
            later = ~causal_mask(t, src.device)
            hidden = self.body.decoder(self.embed(words), memory, tgt_mask=later, tgt_is_causal=True, memory_key_padding_mask=padded)
            logits = hidden[:, -1] @ self.embedding.weight.T
            logits[:, [PAD, BOS, EOS]] = -torch.inf
            words = torch.cat([words, logits.argmax(1, keepdim=True)], dim=1)
        return words[:, 1:]


def norms(layer: nn.Module) -> list[nn.Module]:
    """The norms of one of our layers, in the order of its sublayers."""
    return [part for name, part in layer.named_children() if name.startswith("norm_")]


def attentions(layer: nn.Module) -> list[nn.Module]:
    """The attentions of one of our layers, self-attention first."""
    return [part.heads for part in (layer.self_attention, getattr(layer, "cross_attention", None)) if part is not None]


def inputs(heads: nn.Module) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Weights and biases of the query, the key and the value."""
    parts = [heads.in_proj] if hasattr(heads, "in_proj") else [heads.q_proj, heads.kv_proj]
    return torch.cat([part.weight for part in parts]).chunk(3), torch.cat([part.bias for part in parts]).chunk(3)


class Marian(nn.Module):
    """Hugging Face's MarianMTModel; post-norm, as the paper's, so its weights are ours only if ours is post-norm too."""

    beams = True

    def __init__(self, ours: Transformer, sizes: dict, never: tuple[int, ...] = ()):   # never: words that are not to be written
        super().__init__()
        from transformers import MarianConfig, MarianMTModel
        from transformers.utils import logging
        logging.set_verbosity_error()
        config = MarianConfig(
            vocab_size=len(ours.tgt_embedding.weight), d_model=sizes["d_model"], max_position_embeddings=LONGEST,
            encoder_layers=sizes["n_layers"], decoder_layers=sizes["n_layers"], encoder_attention_heads=sizes["n_heads"],
            decoder_attention_heads=sizes["n_heads"], encoder_ffn_dim=sizes["d_ff"], decoder_ffn_dim=sizes["d_ff"],
            activation_function="relu", dropout=sizes["dropout"], attention_dropout=sizes["dropout"], activation_dropout=sizes["dropout"],
            scale_embedding=True, share_encoder_decoder_embeddings=True, tie_word_embeddings=True, pad_token_id=PAD,
            bos_token_id=BOS, eos_token_id=EOS, forced_eos_token_id=None, decoder_start_token_id=BOS)
        self.model = MarianMTModel(config)
        self.copy(ours)
        self.model.final_logits_bias[:, list(never)] = -1e9

    @torch.no_grad()
    def copy(self, ours: Transformer) -> None:
        """Take over our weights."""
        body, width = self.model.model, ours.tgt_embedding.weight.shape[1]
        body.shared.weight.copy_(ours.tgt_embedding.weight)
        self.model.tie_weights()
        for side in (body.encoder, body.decoder):
            side.embed_positions.weight.copy_(sinusoids(torch.arange(LONGEST), width))
        for stack, twin in ((ours.encoder, body.encoder), (ours.decoder, body.decoder)):
            for a, b in zip(stack.layers, twin.layers, strict=True):
                theirs = [(b.self_attn, b.self_attn_layer_norm)]
                theirs += [(b.encoder_attn, b.encoder_attn_layer_norm)] if hasattr(b, "encoder_attn") else []
                for mine, (other, their_norm), norm in zip(attentions(a), theirs, norms(a)):
                    for name, weight, bias in zip(("q_proj", "k_proj", "v_proj"), *inputs(mine)):
                        getattr(other, name).weight.copy_(weight)
                        getattr(other, name).bias.copy_(bias)
                    other.out_proj.load_state_dict(mine.out_proj.state_dict())
                    their_norm.load_state_dict(norm.state_dict())
                b.fc1.load_state_dict(a.feed_forward.expand.state_dict())
                b.fc2.load_state_dict(a.feed_forward.contract.state_dict())
                b.final_layer_norm.load_state_dict(norms(a)[-1].state_dict())

    def logits(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        return self.model(input_ids=src, attention_mask=padding_mask(src, PAD).long(), decoder_input_ids=tgt_in, use_cache=False).logits

    def loss(self, src: Tensor, tgt: Tensor) -> Tensor:
        return smoothed(self.logits(src, tgt[:, :-1]), tgt)

    @torch.inference_mode()
    def decode(self, src: Tensor, beam_size: int, length: int) -> Tensor:   # (B, length)
        """Exactly `length` words for each sentence."""
        found = self.model.generate(src, attention_mask=padding_mask(src, PAD).long(), num_beams=beam_size, do_sample=False,
                                    min_new_tokens=length, max_new_tokens=length, early_stopping=False)
        return found[:, 1:]


class CTranslate2:
    """The C++ library, float32, with the weights of a `Marian`."""

    beams = True

    def __init__(self, marian: Marian, threads: int, device: str = "cpu", searches: int = 1):   # threads of each search, searches at a time
        import ctranslate2
        from ctranslate2.converters.transformers import BartLoader
        config = marian.model.config
        config.normalize_before = config.normalize_embedding = False
        spec = BartLoader().get_model_spec(marian.model)
        words = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(4, config.vocab_size))]
        spec.register_source_vocabulary(words)
        spec.register_target_vocabulary(words)
        spec.config.bos_token = spec.config.decoder_start_token = "<s>"
        spec.config.eos_token, spec.config.unk_token = "</s>", "<unk>"
        spec.config.add_source_eos = False
        spec.validate()
        self.words, self.ids = words, {word: i for i, word in enumerate(words)}
        with tempfile.TemporaryDirectory() as folder:
            spec.save(folder)
            self.translator = ctranslate2.Translator(folder, device=device, compute_type="float32", inter_threads=searches, intra_threads=threads)

    def texts(self, src: Tensor) -> list[list[str]]:
        """Its own form of a batch."""
        return [[self.words[i] for i in row if i != PAD] for row in src.tolist()]

    def decode_texts(self, texts: list[list[str]], beam_size: int, length: int, batch: int) -> list[list[str]]:
        """Exactly `length` words for each sentence; sentences in batches, as many at a time as there are searches."""
        found = self.translator.translate_batch(texts, beam_size=beam_size, min_decoding_length=length, max_decoding_length=length,
                                                max_batch_size=batch)
        return [one.hypotheses[0] for one in found]

    def decode(self, src: Tensor, beam_size: int, length: int) -> Tensor:   # (B, length)
        return torch.tensor([[self.ids[word] for word in row] for row in self.decode_texts(self.texts(src), beam_size, length, len(src))])


class XTransformers(nn.Module):
    """x-transformers' XTransformer, pre-norm, of the same sizes and dropout sites; it has no place for our weights (no biases)."""

    beams = False

    def __init__(self, ours: Transformer, sizes: dict):
        super().__init__()
        from x_transformers import XTransformer
        inner = {"depth": sizes["n_layers"], "heads": sizes["n_heads"], "attn_dim_head": sizes["d_model"] // sizes["n_heads"],
                 "ff_mult": sizes["d_ff"] / sizes["d_model"], "attn_dropout": sizes["dropout"], "ff_dropout": sizes["dropout"],
                 "attn_sublayer_dropout": sizes["dropout"], "ff_sublayer_dropout": sizes["dropout"],
                 "ff_custom_activation": nn.ReLU(), "attn_flash": True, "num_tokens": len(ours.tgt_embedding.weight), "max_seq_len": LONGEST, "emb_dropout": sizes["dropout"]}
        self.model = XTransformer(dim=sizes["d_model"], tie_token_emb=True, **{f"enc_{k}": v for k, v in inner.items()},
                                  **{f"dec_{k}": v for k, v in inner.items()})
        net = self.model.decoder.net
        del net.to_logits
        net.to_logits = lambda hidden: hidden @ net.token_emb.emb.weight.T     # tied to the embedding, as in all the others

    def loss(self, src: Tensor, tgt: Tensor) -> Tensor:
        real = padding_mask(src, PAD)
        memory = self.model.encoder(src, mask=real, return_embeddings=True)
        net = self.model.decoder.net
        return smoothed(net(tgt[:, :-1], context=memory, context_mask=real), tgt)

    @torch.inference_mode()
    def decode(self, src: Tensor, beam_size: int, length: int) -> Tensor:   # (B, length)
        """The likeliest words, exactly `length`, with its cache of keys and values."""
        first = src.new_full((len(src), 1), BOS)
        return self.model.generate(src, first, length, mask=padding_mask(src, PAD), temperature=0.0)


class JoeyRecurrent(nn.Module):
    """JoeyNMT's recurrent model with Bahdanau's attention: GRU, bidirectional encoder, input feeding, one table of words."""

    def __init__(self, vocabulary: int, d_model: int, d_hidden: int, dropout: float):
        super().__init__()
        sys.modules.setdefault("torch.utils.tensorboard", types.SimpleNamespace(SummaryWriter=None))   # it logs there; not needed
        from joeynmt.decoders import RecurrentDecoder
        from joeynmt.embeddings import Embeddings
        from joeynmt.encoders import RecurrentEncoder
        from joeynmt.loss import XentLoss
        table = lambda: Embeddings(d_model, vocab_size=vocabulary, padding_idx=PAD)
        self.src = self.tgt = table()                                # its option tied_embeddings
        self.encoder = RecurrentEncoder("gru", d_hidden, d_model, dropout=dropout, emb_dropout=dropout, bidirectional=True)
        self.decoder = RecurrentDecoder("gru", d_model, d_hidden, self.encoder, "bahdanau", 1, vocabulary, dropout, dropout, dropout)
        self.decoder.output_layer.weight = self.tgt.lut.weight       # its option tied_softmax, for which d_model is d_hidden
        self.criterion = XentLoss(PAD, SMOOTHING)

    def loss(self, src: Tensor, tgt: Tensor) -> Tensor:
        mask = padding_mask(src, PAD)
        lengths, order = mask.sum(1).sort(descending=True)       # it packs, longest first; its own batches come so
        src, tgt, mask = src[order], tgt[order], mask[order].unsqueeze(1)
        memory, last = self.encoder(self.src(src), lengths, mask)
        logits = self.decoder(self.tgt(tgt[:, :-1]), memory, last, mask, tgt.shape[1] - 1)[0]
        true = tgt[:, 1:]
        return self.criterion(F.log_softmax(logits, -1), trg=true) / (true != PAD).sum()
