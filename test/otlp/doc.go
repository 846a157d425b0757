// SPDX-License-Identifier: Apache-2.0

// Package otlp checks what the relay exports with the server and the data types of OpenTelemetry's own collector
// (pdata). It is a separate module, so that these stay out of the product.
//
// It does not test retries and limits: common/relay/otlp does.
package otlp
