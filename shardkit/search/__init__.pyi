from shardkit.search.documents import Document as Document, Hit as Hit, Results as Results
from shardkit.search.files import (
    FileDocument as FileDocument,
    SkippedFile as SkippedFile,
    adapt as adapt,
    documents_of as documents_of,
    files_below as files_below,
    installed_documents as installed_documents,
)
from shardkit.search.index import PartInfo as PartInfo, SearchIndex as SearchIndex
from shardkit.search.query import (
    AllOf as AllOf,
    AnyOf as AnyOf,
    Equal as Equal,
    Everything as Everything,
    Node as Node,
    Not as Not,
    Nothing as Nothing,
    Phrase as Phrase,
    Prefix as Prefix,
    Range as Range,
    Word as Word,
    analyze as analyze,
    parse as parse,
    quote as quote,
    unparse as unparse,
)
from shardkit.search.schema import Schema as Schema, SchemaParameters as SchemaParameters
from shardkit.search.searcher import (
    ResultOptions as ResultOptions,
    SearchOptions as SearchOptions,
    snippet as snippet,
)
from shardkit.search.text import (
    Analyzer as Analyzer,
    English as English,
    Token as Token,
    Tokenizer as Tokenizer,
    Unicode as Unicode,
)
