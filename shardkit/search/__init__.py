"""Full-text search over shards: documents whole on one shard, queries sent to all."""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.search.files.adapt import adapt
    from shardkit.search.files.readers import (
        FileDocument,
        SkippedFile,
        documents_of,
        files_below,
        installed_documents,
    )
    from shardkit.search.index import PartInfo, SearchIndex
    from shardkit.search.model.documents import Document
    from shardkit.search.model.results import Hit, Results
    from shardkit.search.model.schema import Schema, SchemaParameters
    from shardkit.search.query.analysis import analyze
    from shardkit.search.query.parser import parse, quote, unparse
    from shardkit.search.query.tree import (
        AllOf,
        AnyOf,
        Equal,
        Everything,
        Node,
        Not,
        Nothing,
        Phrase,
        Prefix,
        Range,
        Word,
    )
    from shardkit.search.request import ResultOptions, SearchOptions
    from shardkit.search.snippets import snippet
    from shardkit.search.text.analyzer import Analyzer
    from shardkit.search.text.tokenizers import English, Token, Tokenizer, Unicode
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "shardkit.search.files.adapt": "adapt",
            "shardkit.search.files.readers": (
                "FileDocument SkippedFile documents_of files_below installed_documents"
            ),
            "shardkit.search.index": "PartInfo SearchIndex",
            "shardkit.search.model.documents": "Document",
            "shardkit.search.model.results": "Hit Results",
            "shardkit.search.model.schema": "Schema SchemaParameters",
            "shardkit.search.query.analysis": "analyze",
            "shardkit.search.query.parser": "parse quote unparse",
            "shardkit.search.query.tree": (
                "AllOf AnyOf Equal Everything Node Not Nothing Phrase Prefix Range Word"
            ),
            "shardkit.search.request": "ResultOptions SearchOptions",
            "shardkit.search.snippets": "snippet",
            "shardkit.search.text.analyzer": "Analyzer",
            "shardkit.search.text.tokenizers": "English Token Tokenizer Unicode",
        },
    )

__all__ = [
    "AllOf",
    "Analyzer",
    "AnyOf",
    "Document",
    "English",
    "Equal",
    "Everything",
    "FileDocument",
    "Hit",
    "Node",
    "Not",
    "Nothing",
    "PartInfo",
    "Phrase",
    "Prefix",
    "Range",
    "ResultOptions",
    "Results",
    "Schema",
    "SchemaParameters",
    "SearchIndex",
    "SearchOptions",
    "SkippedFile",
    "Token",
    "Tokenizer",
    "Unicode",
    "Word",
    "adapt",
    "analyze",
    "documents_of",
    "files_below",
    "installed_documents",
    "parse",
    "quote",
    "snippet",
    "unparse",
]
