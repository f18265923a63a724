"""How sequence models became the Transformer: a course whose notebooks are the library."""
__version__ = "1.0.0"
__all__ = ["Encoder", "Translator", "Writer", "load"]

_HOMES = {"Encoder": "pipelines.encoder", "Translator": "pipelines.translator", "Writer": "pipelines.writer", "load": "pipelines.loading"}


def __getattr__(name: str):
    """One of the four at its first use, so that importing the package costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
