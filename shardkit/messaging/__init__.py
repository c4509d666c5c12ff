"""Messaging over shards: mailboxes, group chat, files for many readers, totals of records."""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.messaging.chat import ChatMember, ChatNews, Chats
    from shardkit.messaging.decoding import FilePosition
    from shardkit.messaging.files import ChannelStatus, Files, FileStatus, LeasedFile, PublishedFile
    from shardkit.messaging.mailbox import DROP_OLDEST, REFUSE, MailboxCounts, Mailboxes
    from shardkit.messaging.messages import Message
    from shardkit.messaging.totals import RecordTally, Total, Totals, by_place
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "shardkit.messaging.chat": "ChatMember ChatNews Chats",
            "shardkit.messaging.decoding": "FilePosition",
            "shardkit.messaging.files": "ChannelStatus Files FileStatus LeasedFile PublishedFile",
            "shardkit.messaging.mailbox": "DROP_OLDEST REFUSE MailboxCounts Mailboxes",
            "shardkit.messaging.messages": "Message",
            "shardkit.messaging.totals": "RecordTally Total Totals by_place",
        },
    )

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
