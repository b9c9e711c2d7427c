{{ config(materialized='incremental', incremental_strategy='insert_overwrite', partition_by='day') }}
select id, customer, amount, day from {{ ref('orders') }}
