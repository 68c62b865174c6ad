#!/bin/sh
# Runs the iptables tool of the name it is called by, in the flavour that the
# kubelet of this node uses: the kubelet leaves the chain KUBE-IPTABLES-HINT in
# the tables of its flavour. Mixing flavours makes rules that nobody sees.
name=${0##*/}
flavour=nft
if xtables-legacy-multi iptables-save 2>/dev/null | grep -q '^:KUBE-IPTABLES-HINT' ||
	xtables-legacy-multi ip6tables-save 2>/dev/null | grep -q '^:KUBE-IPTABLES-HINT'; then
	flavour=legacy
fi
exec "/usr/sbin/xtables-$flavour-multi" "$name" "$@"
