<?php
// Asks the distributors of Predis, as its cluster of PredisStrategy uses them.
require 'Predis/autoload.php';

$asked = json_decode(stream_get_contents(STDIN), true);
$answers = [];
foreach ($asked['cases'] as $case) {
    $ring = ($case['distributor'] ?? 'hashring') === 'ketama'
        ? new Predis\Cluster\Distributor\KetamaRing()
        : new Predis\Cluster\Distributor\HashRing();
    foreach ($case['names'] as $n => $name) {
        $ring->add($name, $case['weights'][$n] ?? 1);
    }
    $strategy = new Predis\Cluster\PredisStrategy($ring);
    $places = [];
    foreach ($asked['keys'] as $key) {
        $node = $ring->getBySlot($ring->getSlot($strategy->getSlotByKey($key)));
        $places[] = array_search($node, $case['names'], true);
    }
    $answers[] = $places;
}
echo json_encode($answers);
