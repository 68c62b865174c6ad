// Package probe runs the startup, readiness and liveness probes of a Pod from
// outside, as the kubelet does, and says why the Pod is or is not ready, and
// where that differs from what the kubelet says.
//
// A [Worker] decides, without a clock or a network of its own: when a probe
// runs, what its answers add up to, and when it stops. [Handlers] act: exec,
// HTTP, TCP and gRPC, over connections that somebody else makes. A [Session] ties
// both to a Pod and to time.
//
// The rules are those of Kubernetes v1.37, pkg/kubelet/prober and pkg/probe,
// which cannot be imported; comments name the source of each. What they say has
// been the same since v1.34. What a session cannot know:
//
//   - The kubelet's ticks. It counts periods from when it first saw the Pod, and
//     runs the readiness probe of a container that is not ready once more each
//     time it looks after the Pod. A session does so whenever the Pod's status
//     changes. So both see the same answers, but not at the same instant, and a
//     result may be up to a period earlier in the one than in the other.
//   - The kubelet's counts. They begin with the container, those of a session when
//     it begins to look. A session that comes later needs as many answers again.
//
// A session changes nothing: a container whose liveness probe fails is
// restarted by its kubelet, not by the session, which goes on with the new one.
package probe
