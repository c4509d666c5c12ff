"""Names as they are typed: recent contacts and address books."""

from shardkit.completion.address_book import AddressBook
from shardkit.completion.contacts import RecentContacts
from shardkit.completion.names import fold

__all__ = ["AddressBook", "RecentContacts", "fold"]
