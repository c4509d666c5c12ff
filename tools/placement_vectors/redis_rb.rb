# Asks Redis::Distributed; its nodes connect only when something is sent.
require 'json'
require 'redis'
require 'redis/distributed'

asked = JSON.parse($stdin.read)
Node = Struct.new(:id)
answers = asked['cases'].map do |given|
  distributed = Redis::Distributed.new([])
  ring = Redis::HashRing.new(given['names'].map { |name| Node.new(name) })
  distributed.instance_variable_set(:@ring, ring)
  asked['keys'].map { |key| given['names'].index(distributed.node_for(key).id) }
end
puts JSON.generate(answers)
