package controller

import (
	"context"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-lab/dra-lab/driver/api/v1alpha1"
)

// writeTimeout bounds one write.
const writeTimeout = 10 * time.Second

// writer makes writes through the API server.
type writer struct{ cfg Config }

func (w writer) NodeExists(ctx context.Context, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	_, err := w.cfg.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

func (w writer) CreateOperation(ctx context.Context, op *v1alpha1.DeviceOperation) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	_, err := w.cfg.Operations.Create(ctx, op, metav1.CreateOptions{})
	return err
}

func (w writer) UpdateOperation(ctx context.Context, op *v1alpha1.DeviceOperation) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	_, err := w.cfg.Operations.Update(ctx, op, metav1.UpdateOptions{})
	return err
}

func (w writer) UpdateOperationStatus(ctx context.Context, op *v1alpha1.DeviceOperation) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	_, err := w.cfg.Operations.UpdateStatus(ctx, op, metav1.UpdateOptions{})
	return err
}

func (w writer) DeleteOperation(ctx context.Context, op *v1alpha1.DeviceOperation) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return w.cfg.Operations.Delete(ctx, op.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(op.UID)}})
}

func (w writer) UpdateClaimStatus(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	_, err := w.cfg.Client.ResourceV1().ResourceClaims(claim.Namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	return err
}

func (w writer) CreateTaintRule(ctx context.Context, rule *resourceapi.DeviceTaintRule) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	_, err := w.cfg.Client.ResourceV1().DeviceTaintRules().Create(ctx, rule, metav1.CreateOptions{})
	return err
}
