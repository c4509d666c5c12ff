from shardkit.completion.address_book import AddressBook as AddressBook
from shardkit.completion.contacts import RecentContacts as RecentContacts, fold as fold
