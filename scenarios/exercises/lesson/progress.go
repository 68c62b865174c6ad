package lesson

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/dra-lab/dra-lab/driver/api"
)

// progressName is the ConfigMap that remembers the progress, per cluster.
const (
	progressName = "exercises"
	progressKey  = "progress.json"
)

// Progress is what is remembered of a learner on one cluster.
type Progress struct {
	// Current is the name of the exercise that was started last.
	Current string          `json:"current,omitempty"`
	Of      map[string]Step `json:"of,omitempty"` // by name of the exercise
}

// Step is the progress in one exercise.
type Step struct {
	Started time.Time `json:"started,omitzero"`
	Solved  time.Time `json:"solved,omitzero"`
	Hints   int       `json:"hints,omitempty"` // shown so far
}

// Progress reads what is remembered. Nothing yet, or something that cannot be
// read, is no progress.
func (r *Room) Progress(ctx context.Context) (Progress, error) {
	kept, err := r.Client.CoreV1().ConfigMaps(api.Namespace).Get(ctx, progressName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return Progress{Of: map[string]Step{}}, nil
	}
	if err != nil {
		return Progress{}, fmt.Errorf("read progress: %w", err)
	}
	return parseProgress(kept.Data[progressKey]), nil
}

func parseProgress(data string) Progress {
	var p Progress
	if err := json.Unmarshal([]byte(data), &p); err != nil {
		p = Progress{}
	}
	if p.Of == nil {
		p.Of = map[string]Step{}
	}
	return p
}

// Remember changes what is remembered. Several learners on one cluster do not
// lose each other's.
func (r *Room) Remember(ctx context.Context, change func(*Progress)) error {
	maps := r.Client.CoreV1().ConfigMaps(api.Namespace)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		kept, err := maps.Get(ctx, progressName, metav1.GetOptions{})
		missing := apierrors.IsNotFound(err)
		if err != nil && !missing {
			return err
		}
		if missing {
			kept = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: progressName}}
		}
		p := parseProgress(kept.Data[progressKey])
		change(&p)
		data, err := json.Marshal(p)
		if err != nil {
			return err
		}
		kept.Data = map[string]string{progressKey: string(data)}
		if missing {
			_, err = maps.Create(ctx, kept, metav1.CreateOptions{})
			return err
		}
		_, err = maps.Update(ctx, kept, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("remember progress: %w", err)
	}
	return nil
}
