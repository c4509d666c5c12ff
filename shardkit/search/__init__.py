"""Full-text search over shards: documents whole on one shard, queries sent to all."""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.search.files.adapt import adapt as adapt
    from shardkit.search.files.readers import (
        FileDocument as FileDocument,
    )
    from shardkit.search.files.readers import (
        SkippedFile as SkippedFile,
    )
    from shardkit.search.files.readers import (
        documents_of as documents_of,
    )
    from shardkit.search.files.readers import (
        files_below as files_below,
    )
    from shardkit.search.files.readers import (
        installed_documents as installed_documents,
    )
    from shardkit.search.index import PartInfo as PartInfo
    from shardkit.search.index import SearchIndex as SearchIndex
    from shardkit.search.model.documents import Document as Document
    from shardkit.search.model.results import Hit as Hit
    from shardkit.search.model.results import Results as Results
    from shardkit.search.model.schema import Schema as Schema
    from shardkit.search.model.schema import SchemaParameters as SchemaParameters
    from shardkit.search.query.analysis import analyze as analyze
    from shardkit.search.query.parser import parse as parse
    from shardkit.search.query.parser import quote as quote
    from shardkit.search.query.parser import unparse as unparse
    from shardkit.search.query.tree import (
        AllOf as AllOf,
    )
    from shardkit.search.query.tree import (
        AnyOf as AnyOf,
    )
    from shardkit.search.query.tree import (
        Equal as Equal,
    )
    from shardkit.search.query.tree import (
        Everything as Everything,
    )
    from shardkit.search.query.tree import (
        Node as Node,
    )
    from shardkit.search.query.tree import (
        Not as Not,
    )
    from shardkit.search.query.tree import (
        Nothing as Nothing,
    )
    from shardkit.search.query.tree import (
        Phrase as Phrase,
    )
    from shardkit.search.query.tree import (
        Prefix as Prefix,
    )
    from shardkit.search.query.tree import (
        Range as Range,
    )
    from shardkit.search.query.tree import (
        Word as Word,
    )
    from shardkit.search.request import (
        ResultOptions as ResultOptions,
    )
    from shardkit.search.request import (
        SearchOptions as SearchOptions,
    )
    from shardkit.search.snippets import snippet as snippet
    from shardkit.search.text.analyzer import Analyzer as Analyzer
    from shardkit.search.text.tokenizers import (
        English as English,
    )
    from shardkit.search.text.tokenizers import (
        Token as Token,
    )
    from shardkit.search.text.tokenizers import (
        Tokenizer as Tokenizer,
    )
    from shardkit.search.text.tokenizers import (
        Unicode as Unicode,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
