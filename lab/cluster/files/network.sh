#!/bin/sh
# Runs in a node before every start of the kubelet, and may run any number of
# times. See addNetwork for what it is part of.
set -eu

subnet=@POD_SUBNET@
device=$(ip -4 route show default | sed -n 's/.* dev \([^ ]*\).*/\1/p' | head -n 1)
device=${device:-eth0}

# Pods of all nodes are neighbours on the nodes' network. Those of this node have
# routes of their own, which are narrower.
ip route replace "$subnet" dev "$device" scope link

# Answer for this node's Pods, at once: by default the kernel waits up to 0.8 s.
echo 1 >"/proc/sys/net/ipv4/conf/$device/proxy_arp"
echo 0 >"/proc/sys/net/ipv4/neigh/$device/proxy_delay"
echo 1 >/proc/sys/net/ipv4/ip_forward

# To the outside, Pods are this node.
rule="-s $subnet ! -d $subnet -m comment --comment dra-lab -j MASQUERADE"
# Words of the rule are arguments.
# shellcheck disable=SC2086
iptables -w -t nat -C POSTROUTING $rule 2>/dev/null || iptables -w -t nat -A POSTROUTING $rule

# Pods must not send larger packets than the node can.
mkdir -p /run/dra-lab
mtu=$(cat "/sys/class/net/$device/mtu")
sed "s/@MTU@/$mtu/" /kind/dra-lab/cni.conflist >/run/dra-lab/cni.conflist.new
mv /run/dra-lab/cni.conflist.new /run/dra-lab/cni.conflist
