"""Names as they are typed: recent contacts and address books."""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.completion.address_book import AddressBook as AddressBook
    from shardkit.completion.contacts import RecentContacts as RecentContacts, fold as fold
else:
    __getattr__, __dir__ = lazy_names(__name__)
