from shardkit.ads.ads import Ad as Ad, Ads as Ads, Served as Served, WordCounts as WordCounts
