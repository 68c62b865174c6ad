// Package fault breaks the simulated GPUs of a running lab and mends them
// again. Faults come from outside: what is wrong with a GPU is written on the
// node, where its simulated hardware lives, and the driver finds out as it
// would with a real GPU. Nothing is restarted, rebuilt or told.
//
// Injecting and clearing are atomic for one GPU: two commands at the same time
// both take effect. A fault stays until it is cleared, until its time is over
// or until the node goes. Real GPUs cannot be broken from here, and a node that
// has them is refused.
package fault
