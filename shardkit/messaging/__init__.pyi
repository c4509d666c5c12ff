from shardkit.messaging.chat import (
    ChatMember as ChatMember,
    ChatNews as ChatNews,
    Chats as Chats,
)
from shardkit.messaging.decoding import FilePosition as FilePosition
from shardkit.messaging.files import (
    ChannelStatus as ChannelStatus,
    Files as Files,
    FileStatus as FileStatus,
    LeasedFile as LeasedFile,
    PublishedFile as PublishedFile,
)
from shardkit.messaging.mailbox import (
    DROP_OLDEST as DROP_OLDEST,
    REFUSE as REFUSE,
    MailboxCounts as MailboxCounts,
    Mailboxes as Mailboxes,
)
from shardkit.messaging.tagged import Message as Message
from shardkit.messaging.totals import (
    RecordTally as RecordTally,
    Total as Total,
    Totals as Totals,
    by_place as by_place,
)
