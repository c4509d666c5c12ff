"""Full-text search over shards: documents whole on one shard, queries sent to all."""

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
from shardkit.search.model.schema import Schema
from shardkit.search.query.analysis import analyze
from shardkit.search.query.parser import parse, unparse
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
    "snippet",
    "unparse",
]
