// Package fault breaks a running lab and mends it again: its simulated GPUs, its
// driver and its nodes.
//
// Faults of a GPU come from outside: what is wrong with it is written on the
// node, where its simulated hardware lives, and the driver finds out as it
// would with a real GPU. Nothing is restarted, rebuilt or told. Faults of the
// driver are written there, too, and it looks for them: it has that for labs
// only. Real GPUs, and the driver of a node that has them, cannot be broken from
// here.
//
// Faults of a node are commands on the node. Each is recorded there before it is
// done, so that listing and clearing know of it, whoever was killed in between.
// One that is to end by itself is ended by the node.
//
// Injecting and clearing are atomic for one GPU, driver or node: two commands at
// the same time both take effect. A fault stays until it is cleared, until its
// time is over or until the node goes.
package fault
