<?php
// Writes with RedisArray: php redis_array.php URL...; commands are on standard input.
$servers = array_map(fn ($url) => parse_url($url), array_slice($argv, 1));
$client = new RedisArray(array_map(fn ($server) => "{$server['host']}:{$server['port']}", $servers));
$client->select((int) substr($servers[0]['path'], 1));
while (($line = fgets(STDIN)) !== false) {
    $words = explode("\t", rtrim($line, "\n"));
    $reply = $client->{strtolower($words[0])}(...array_slice($words, 1));
    if ($words[0] === 'GET') {
        echo $reply, "\n";
    }
}
