from shardkit.market.market import Market as Market
