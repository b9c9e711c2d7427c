{{ config(materialized='incremental', incremental_strategy='merge', unique_key=['id']) }}
select id, customer, uuid() as token, rand() as chance, current_timestamp() as loaded_at
from {{ ref('orders') }}
