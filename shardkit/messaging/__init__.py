"""Messaging over shards: mailboxes, group chat, files for many readers, totals of records."""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.messaging.chat import (
        ChatMember as ChatMember,
    )
    from shardkit.messaging.chat import (
        ChatNews as ChatNews,
    )
    from shardkit.messaging.chat import (
        Chats as Chats,
    )
    from shardkit.messaging.decoding import FilePosition as FilePosition
    from shardkit.messaging.files import (
        ChannelStatus as ChannelStatus,
    )
    from shardkit.messaging.files import (
        Files as Files,
    )
    from shardkit.messaging.files import (
        FileStatus as FileStatus,
    )
    from shardkit.messaging.files import (
        LeasedFile as LeasedFile,
    )
    from shardkit.messaging.files import (
        PublishedFile as PublishedFile,
    )
    from shardkit.messaging.mailbox import (
        DROP_OLDEST as DROP_OLDEST,
    )
    from shardkit.messaging.mailbox import (
        REFUSE as REFUSE,
    )
    from shardkit.messaging.mailbox import (
        MailboxCounts as MailboxCounts,
    )
    from shardkit.messaging.mailbox import (
        Mailboxes as Mailboxes,
    )
    from shardkit.messaging.messages import Message as Message
    from shardkit.messaging.totals import (
        RecordTally as RecordTally,
    )
    from shardkit.messaging.totals import (
        Total as Total,
    )
    from shardkit.messaging.totals import (
        Totals as Totals,
    )
    from shardkit.messaging.totals import (
        by_place as by_place,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
