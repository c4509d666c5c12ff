<?php
// Writes with Predis: php predis.php URL...; commands are on standard input.
require 'Predis/autoload.php';

$servers = array_map(fn ($url) => parse_url($url), array_slice($argv, 1));
$client = new Predis\Client(array_map(
    fn ($server) => ['host' => $server['host'], 'port' => $server['port'],
        'database' => (int) substr($server['path'], 1)],
    $servers
));
while (($line = fgets(STDIN)) !== false) {
    $words = explode("\t", rtrim($line, "\n"));
    $reply = $client->{strtolower($words[0])}(...array_slice($words, 1));
    if ($words[0] === 'GET') {
        echo $reply, "\n";
    }
}
