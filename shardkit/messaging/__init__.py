"""Messaging over shards: mailboxes, group chat, files for many readers, totals of records."""

from shardkit.messaging.chat import ChatMember, ChatNews, Chats
from shardkit.messaging.decoding import FilePosition
from shardkit.messaging.files import ChannelStatus, Files, FileStatus, LeasedFile, PublishedFile
from shardkit.messaging.mailbox import DROP_OLDEST, REFUSE, MailboxCounts, Mailboxes
from shardkit.messaging.messages import Message
from shardkit.messaging.totals import RecordTally, Total, Totals, by_place

__all__ = [
    "DROP_OLDEST",
    "REFUSE",
    "ChannelStatus",
    "ChatMember",
    "ChatNews",
    "Chats",
    "FilePosition",
    "FileStatus",
    "Files",
    "LeasedFile",
    "MailboxCounts",
    "Mailboxes",
    "Message",
    "PublishedFile",
    "RecordTally",
    "Total",
    "Totals",
    "by_place",
]
