"""Messaging over shards: mailboxes, group chat, files for many readers, totals of records."""

from shardkit.messaging.chat import ChatMember, ChatNews, Chats
from shardkit.messaging.mailbox import DROP_OLDEST, REFUSE, MailboxCounts, Mailboxes
from shardkit.messaging.messages import Message

__all__ = [
    "DROP_OLDEST",
    "REFUSE",
    "ChatMember",
    "ChatNews",
    "Chats",
    "MailboxCounts",
    "Mailboxes",
    "Message",
]
