// Package templateorname is the exercise about claims from a template and claims
// that exist by themselves.
package templateorname

import (
	"embed"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-lab/dra-lab/scenarios/exercises/lesson"
)

//go:embed *.md */*.yaml
var files embed.FS

// New reads the exercise.
func New() (lesson.Exercise, error) {
	return lesson.Read("02-template-or-name", files, "Pod a has no claim", check)
}

func check(s lesson.Snapshot) []lesson.Finding {
	var f lesson.Findings
	pods, claims := map[string]corev1.Pod{}, map[string]resourcev1.ResourceClaim{}
	for _, name := range []string{"a", "b", "c", "d"} {
		pods[name], _ = s.Pod(name)
		all := s.ClaimsOf(pods[name])
		f.That(len(all) == 1, fmt.Sprintf("Pod %s has a claim", name), fmt.Sprintf("Pod %s has no claim yet, or several", name))
		if len(all) > 0 {
			claims[name] = all[0]
		}
	}
	for _, name := range []string{"a", "b"} {
		owner := metav1.GetControllerOf(ptr(claims[name]))
		f.That(owner != nil && owner.Name == name, fmt.Sprintf("the claim of %s was made for it", name),
			fmt.Sprintf("Pod %s has no claim that was made for it from a template", name))
	}
	f.That(claims["a"].Name != "" && claims["a"].Name != claims["b"].Name && template(pods["a"]) == template(pods["b"]) && template(pods["a"]) != "",
		"a and b have different claims from one template", "a and b do not have different claims from one template yet")
	f.That(claims["c"].Name != "" && claims["c"].Name == claims["d"].Name, "c and d share a claim", "c and d do not share a claim yet")
	f.That(claims["c"].Name != "" && metav1.GetControllerOf(ptr(claims["c"])) == nil, "their claim exists by itself", "their claim does not exist by itself yet")
	running := 0
	for _, p := range pods {
		if lesson.Running(p) {
			running++
		}
	}
	f.That(running == len(pods), "all four Pods run", fmt.Sprintf("%d of 4 Pods run", running))
	return f
}

func ptr(c resourcev1.ResourceClaim) *resourcev1.ResourceClaim { return &c }

func template(p corev1.Pod) string {
	for _, c := range p.Spec.ResourceClaims {
		if c.ResourceClaimTemplateName != nil {
			return *c.ResourceClaimTemplateName
		}
	}
	return ""
}
