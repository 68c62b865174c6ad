package stage

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/dra-lab/dra-lab/driver/api/v1alpha1"
)

// operationPoll is how often an operation is looked at while one waits for it.
const operationPoll = 100 * time.Millisecond

func operationPath(name string) string {
	return "/apis/" + v1alpha1.GroupVersion().String() + "/" + v1alpha1.OperationResource + "/" + name
}

// Operation reads the operation on a device, nil if there is none.
func (s *Stage) Operation(ctx context.Context, pool, device string) (*v1alpha1.DeviceOperation, error) {
	name := v1alpha1.OperationName(pool, device)
	data, err := s.Client.CoreV1().RESTClient().Get().AbsPath(operationPath(name)).DoRaw(ctx)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read operation %s: %w", name, err)
	}
	var op v1alpha1.DeviceOperation
	if err := json.Unmarshal(data, &op); err != nil {
		return nil, fmt.Errorf("read operation %s: %w", name, err)
	}
	return &op, nil
}

// ForgetOperation deletes the operation on a device, so that earlier attempts no
// longer count. None is no error.
func (s *Stage) ForgetOperation(ctx context.Context, pool, device string) error {
	name := v1alpha1.OperationName(pool, device)
	err := s.Client.CoreV1().RESTClient().Delete().AbsPath(operationPath(name)).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete operation %s: %w", name, err)
	}
	return nil
}

// AwaitOperation waits for at most d until the operation on a device, nil for
// none, is as match says.
func (s *Stage) AwaitOperation(ctx context.Context, d time.Duration, pool, device string, match func(*v1alpha1.DeviceOperation) bool) (*v1alpha1.DeviceOperation, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d, fmt.Errorf("not within %s", d))
	defer cancel()
	ticker := time.NewTicker(operationPoll)
	defer ticker.Stop()
	for {
		op, err := s.Operation(ctx, pool, device)
		if err == nil && match(op) {
			return op, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the operation on %s of %s: %w (last: %+v)", device, pool, cmp.Or(err, context.Cause(ctx)), op)
		case <-ticker.C:
		}
	}
}
