"""Views of a made store, whose special ids are given one by one."""

from types import SimpleNamespace

from firth.data.views.base import Source
from firth.data.views.packed import PackedConfig
from firth.data.views.pairs import PairsConfig
from firth.data.views.streams import StreamsConfig

IDS = ("cls_id", "sep_id", "pad_id", "end_id")
SOURCE = ("seed", "documents", "cache")


def maker(config):
    """`make(store, length, **options)`: options are ids, fields of the source and of the config."""

    def make(store, length, **options):
        ids = {name: options.pop(name, None) for name in IDS}
        source = {name: options.pop(name) for name in SOURCE if name in options}
        made = config(length=length, **options)
        return made.view(Source(store, SimpleNamespace(**ids), **source))

    return make


packed, pairs, streams = maker(PackedConfig), maker(PairsConfig), maker(StreamsConfig)
