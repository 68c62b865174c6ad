// Scenario exercises: each exercise fails its check at the start and says what is
// missing, its solution passes, and a reset brings the start back.
//
// Given an exercise that was just started, when it is checked, then what a
// learner has to do first does not hold yet, and the check takes 3 s at most.
// When its solution is applied as "lab exercise solution --apply" does it, then
// everything holds. When it is reset, then it is as at the start, and when it is
// removed nothing is left.

package scenarios

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/scenarios/exercises"
	"github.com/dra-lab/dra-lab/scenarios/exercises/lesson"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

const (
	// exerciseTime is the patience for what an exercise waits for.
	exerciseTime = time.Minute
	// checkTime is how long a check may take.
	checkTime = 3 * time.Second
)

// shortExercises are those that every test run has.
func shortExercises() []string { return []string{"first-claim", "selection", "inside-the-container"} }

type exercising struct {
	*stage.Stage
	room *lesson.Room
}

func TestExercises(t *testing.T) {
	s := &exercising{Stage: stage.New(t, "exercises")}
	feature := features.New("exercises").Setup(s.Begin).Setup(s.enter)
	all, err := exercises.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if testing.Short() && !slices.Contains(shortExercises(), e.Name) {
			continue
		}
		feature.Assess(e.Folder(), func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			s.exercise(ctx, t, e)
			return ctx
		})
	}
	s.Play(t, feature)
}

func (s *exercising) enter(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	var err error
	if s.room, err = lesson.Enter(ctx, s.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	return ctx
}

func (s *exercising) exercise(ctx context.Context, t *testing.T, e lesson.Exercise) {
	s.Note("exercise "+e.Folder(), "")
	t.Cleanup(func() { s.clear(context.WithoutCancel(ctx), t, e) })
	// A run that was killed leaves it behind.
	s.clear(ctx, t, e)
	s.begin(ctx, t, e)

	start := time.Now()
	if _, err := s.room.Check(ctx, e); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > checkTime {
		t.Errorf("a check took %s, at most %s allowed", took, checkTime)
	}

	if len(e.Solution) > 0 || !e.Breaks {
		s.solve(ctx, t, e)
	}
	if e.Breaks {
		s.breakGPU(ctx, t, e)
		defer s.Mend(ctx, t)
	}
	s.await(ctx, t, e, lesson.Solved)

	s.clear(ctx, t, e)
	s.begin(ctx, t, e)
}

// begin starts the exercise and waits until its check says what it says then.
func (s *exercising) begin(ctx context.Context, t *testing.T, e lesson.Exercise) {
	t.Helper()
	if err := s.room.Begin(ctx, e); err != nil {
		t.Fatal(err)
	}
	s.await(ctx, t, e, func(found []lesson.Finding) bool {
		return slices.ContainsFunc(found, func(f lesson.Finding) bool { return !f.Holds && strings.Contains(f.Text, e.AtStart) })
	})
}

// solve does what "lab exercise solution --apply" does.
func (s *exercising) solve(ctx context.Context, t *testing.T, e lesson.Exercise) {
	t.Helper()
	s.clear(ctx, t, e)
	empty := e
	empty.Start = nil
	if err := s.room.Begin(ctx, empty); err != nil {
		t.Fatal(err)
	}
	if err := s.room.Apply(ctx, e, e.Solution); err != nil {
		t.Fatal(err)
	}
	if e.Solve != nil {
		if err := e.Solve(ctx, s.room); err != nil {
			t.Fatal(err)
		}
	}
}

// breakGPU breaks the GPU of the exercise's Pod once that runs.
func (s *exercising) breakGPU(ctx context.Context, t *testing.T, e lesson.Exercise) {
	t.Helper()
	s.await(ctx, t, e, func([]lesson.Finding) bool {
		pods, err := s.Client.CoreV1().Pods(e.Namespace()).List(ctx, metav1.ListOptions{})
		return err == nil && len(pods.Items) == 1 && lesson.Running(pods.Items[0])
	})
	claims, err := s.Client.ResourceV1().ResourceClaims(e.Namespace()).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var devices []lesson.Device
	for _, c := range claims.Items {
		devices = append(devices, lesson.Devices(c)...)
	}
	if len(devices) != 1 {
		t.Fatalf("the exercise has %v, want one GPU", devices)
	}
	s.Break(ctx, t, stage.GPU{Node: devices[0].Node, Name: devices[0].Name}, api.Fault{Kind: api.FaultXID, Code: 79})
}

func (s *exercising) await(ctx context.Context, t *testing.T, e lesson.Exercise, is func([]lesson.Finding) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(ctx, exerciseTime, fmt.Errorf("not within %s", exerciseTime))
	defer cancel()
	if _, err := s.room.Await(ctx, e, is); err != nil {
		t.Fatal(err)
	}
}

func (s *exercising) clear(ctx context.Context, t *testing.T, e lesson.Exercise) {
	t.Helper()
	if err := s.room.Clear(ctx, e); err != nil {
		t.Error(err)
	}
}
