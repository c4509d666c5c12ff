<?php
// Asks RedisArray where it would send keys; it connects only when it sends.
$asked = json_decode(stream_get_contents(STDIN), true);
$answers = [];
foreach ($asked['cases'] as $case) {
    $hosts = [];
    for ($n = 0; $n < $case['shards']; $n++) {
        $hosts[] = "10.0.0.$n:6379";
    }
    $array = new RedisArray($hosts, ['lazy_connect' => true]);
    $places = [];
    foreach ($asked['keys'] as $key) {
        $places[] = array_search($array->_target($key), $hosts, true);
    }
    $answers[] = $places;
}
echo json_encode($answers);
