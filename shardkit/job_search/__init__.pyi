from shardkit.job_search.job_search import JobSearch as JobSearch
